//! Locators of blocks: no text makes the parser panic, a parsed locator is written and read back
//! the same, and none is taken for signed that was not.

use arvados_client::keep::Locator;

const TTL: u64 = 1_209_600;

/// Checks the rules with this input.
pub fn check(text: &str) {
    let Ok(locator) = Locator::parse(text) else {
        return;
    };
    assert_eq!(Locator::parse(&locator.to_string()).as_ref(), Ok(&locator));
    let now = 1_700_000_000;
    assert!(locator.verify(b"key", "v2/uuid/secret", now, TTL).is_err());
    let signed = locator.sign(b"key", "v2/uuid/secret", now + 60, TTL);
    let signed = Locator::parse(&signed.to_string()).expect("a locator");
    assert!(signed.verify(b"key", "v2/uuid/secret", now, TTL).is_ok());
    assert!(signed.verify(b"key", "v2/uuid/other", now, TTL).is_err());
    assert!(
        signed
            .verify(b"key", "v2/uuid/secret", now + 61, TTL)
            .is_err()
    );
}
