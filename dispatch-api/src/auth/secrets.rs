//! Generates secrets from the kernel's random number generator, in the text form of tokens and
//! keys.

use data_encoding::{BASE32_NOPAD, HEXLOWER};

/// 50 letters and digits, the length and alphabet that clients expect: 250 random bits.
pub fn new_token_secret() -> String {
    let mut secret = BASE32_NOPAD.encode(&random()).to_lowercase();
    secret.truncate(50);
    secret
}

/// A key of 32 bytes in hexadecimal.
pub fn new_signing_key() -> String {
    HEXLOWER.encode(&random())
}

fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the kernel provides random bytes");
    bytes
}
