//! Generates secrets from the kernel's random number generator, in the text form of tokens and
//! keys.

/// 50 letters and digits, the length and alphabet that clients expect.
pub fn new_token_secret() -> String {
    const DIGITS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut secret = String::with_capacity(50);
    let mut random = [0u8; 64];
    while secret.len() < 50 {
        fill(&mut random);
        // 252 is the largest multiple of 36 in a byte; larger bytes would make some letters more
        // likely.
        secret.extend(
            random
                .iter()
                .filter(|byte| **byte < 252)
                .map(|byte| char::from(DIGITS[usize::from(*byte) % 36]))
                .take(50 - secret.len()),
        );
    }
    secret
}

/// A key of 32 bytes in hexadecimal.
pub fn new_signing_key() -> String {
    let mut bytes = [0u8; 32];
    fill(&mut bytes);
    data_encoding::HEXLOWER.encode(&bytes)
}

fn fill(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the kernel provides random bytes");
}
