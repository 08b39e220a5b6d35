//! Permission signatures: the hint `+A<hmac>@<expiry>`, with which a server lets a token read a
//! block.
//!
//! The HMAC-SHA1 covers hash, token, expiry and the cluster's signature lifetime, joined by `@`.
//! The token counts exactly as it was presented, so one spelling (`v2/uuid/secret`) has to be used
//! everywhere.

use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

use crate::locator::Locator;

/// A permission signature found in a locator, of the cluster that the locator came from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature<'a> {
    /// The HMAC as 40 hexadecimal digits.
    pub mac: &'a str,
    /// Expiry in hexadecimal seconds since 1970, as written.
    pub expiry_hex: &'a str,
}

impl<'a> Signature<'a> {
    /// Reads a hint without its leading `+`: `A<mac>@<expiry>`.
    fn parse(hint: &'a str) -> Option<Self> {
        let (mac, expiry_hex) = hint.strip_prefix('A')?.split_once('@')?;
        let hex = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit());
        let well_formed =
            mac.len() == 40 && (8..=16).contains(&expiry_hex.len()) && hex(mac) && hex(expiry_hex);
        well_formed.then_some(Self { mac, expiry_hex })
    }

    /// Expiry in seconds since 1970.
    pub fn expires(&self) -> u64 {
        u64::from_str_radix(self.expiry_hex, 16).unwrap_or(0)
    }
}

impl Locator {
    /// The signature of the locator's own cluster, if there is a well-formed one.
    pub fn signature(&self) -> Option<Signature<'_>> {
        self.hints.iter().find_map(|hint| Signature::parse(hint))
    }

    /// This locator with a fresh signature for `token` in place of any older one.
    pub fn sign(&self, key: &[u8], token: &str, expiry_unix: u64, ttl_secs: u64) -> Locator {
        let expiry_hex = format!("{expiry_unix:08x}");
        let mac = self.mac(key, token, &expiry_hex, ttl_secs);
        let mac = data_encoding::HEXLOWER.encode(&mac.finalize().into_bytes());
        let mut signed = self.unsigned();
        signed.hints.insert(0, format!("A{mac}@{expiry_hex}"));
        signed
    }

    /// Whether the signature lets `token` read the block at `now` (seconds since 1970).
    ///
    /// Only the hash is signed: a store must compare the size with the block it holds.
    pub fn verify(
        &self,
        key: &[u8],
        token: &str,
        now_unix: u64,
        ttl_secs: u64,
    ) -> Result<(), SignatureError> {
        let signature = self.signature().ok_or(SignatureError::Missing)?;
        let expected = data_encoding::HEXLOWER_PERMISSIVE
            .decode(signature.mac.as_bytes())
            .map_err(|_| SignatureError::Missing)?;
        self.mac(key, token, signature.expiry_hex, ttl_secs)
            .verify_slice(&expected) // takes the same time wherever the first difference is
            .map_err(|_| SignatureError::Invalid)?;
        if signature.expires() < now_unix {
            return Err(SignatureError::Expired {
                seconds_ago: now_unix - signature.expires(),
            });
        }
        Ok(())
    }

    fn mac(&self, key: &[u8], token: &str, expiry_hex: &str, ttl_secs: u64) -> Hmac<Sha1> {
        // HMAC takes keys of every length, so this constructor cannot fail.
        let mut mac = Hmac::<Sha1>::new_from_slice(key).expect("HMAC takes any key length");
        let signed = format!("{}@{token}@{expiry_hex}@{ttl_secs:x}", self.hash);
        mac.update(signed.as_bytes());
        mac
    }
}

/// Why a locator does not permit reading its block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// There is no (well-formed) signature.
    #[error("the block locator is not signed")]
    Missing,
    /// Made with another key, for another token, or for another block.
    #[error("the signature of the block locator is not valid for this token")]
    Invalid,
    /// It has expired.
    #[error(
        "the signature of the block locator expired {seconds_ago} s ago; fetch the collection again for a new one"
    )]
    Expired {
        /// How long ago.
        seconds_ago: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"thisisnotarealkey";
    const TOKEN: &str = "v2/zzzzz-gj3su-000000000000001/secretsecret";
    const TTL: u64 = 1_209_600;
    const EXPIRY: u64 = 0x65f5_e100;

    fn foo() -> Locator {
        Locator::of(b"foo")
    }

    fn signed() -> Locator {
        foo().sign(KEY, TOKEN, EXPIRY, TTL)
    }

    #[test]
    fn signing_gives_the_answer_computed_elsewhere() {
        assert_eq!(
            signed().to_string(),
            "acbd18db4cc2f85cedef654fccc4a4d8+3+A45bb87da4735961865885967a138e5fbad491d6f@65f5e100"
        );
    }

    #[test]
    fn signing_agrees_with_the_servers_published_test_vector() {
        let key = "13u9fkuccnboeewr0ne3mvapk28epf68a3bhj9q8sb4l6e4e5mkkp6nhj2mmpscgu1zze5h5enydxfe3j215024u16ij4hjaiqs\
             5u4pzsl3nczmaoxncljkm4875xqn4xv058koz3vkptmzhyheiy6wzevzjmdvxhvcqsvr5abhl15c2d4o4jhl0s91lojy1mtrzqqvprqcv\
             erls0xvy9vai9t1l1lvvazpuadafm71jl4mrwq2ygokee3eamvjy8qq1fvy238838enjmy5wzy2md7yvsitp5vztft6j4q866efym7e6v\
             u5wm9fpnwjyxfldw3vbo01mgjs75rgo7qioh8z8ij7jpyp8508okhgbbex3ceei786u5rw2a9gx743dj3fgq2irk";
        let token = "hocfupkn2pjhrpgp2vxv8rsku7tvtx49arbc9s4bvu7p7wxqvk";
        let signed = foo().sign(key.as_bytes(), token, 0x7fff_ffff, 1_209_600);
        assert_eq!(
            signed.signature().unwrap().mac,
            "89118b78732c33104a4d6231e8b5a5fa1e4301e3"
        );
        assert_eq!(signed.signature().unwrap().expiry_hex, "7fffffff");
    }

    #[test]
    fn a_signature_holds_for_its_block_token_key_lifetime_and_time_only() {
        let ok = signed();
        assert_eq!(ok.verify(KEY, TOKEN, EXPIRY, TTL), Ok(()));
        let other_block = Locator {
            hints: ok.hints.clone(),
            ..Locator::of(b"bar")
        };
        let later = Locator {
            hints: vec![ok.hints[0].replace("65f5e100", "75f5e100")],
            ..foo()
        };
        let invalid = Err(SignatureError::Invalid);
        assert_eq!(ok.verify(b"other", TOKEN, 0, TTL), invalid);
        assert_eq!(ok.verify(KEY, "secretsecret", 0, TTL), invalid);
        assert_eq!(ok.verify(KEY, TOKEN, 0, TTL + 1), invalid);
        assert_eq!(other_block.verify(KEY, TOKEN, 0, TTL), invalid);
        assert_eq!(later.verify(KEY, TOKEN, 0, TTL), invalid);
        assert_eq!(
            ok.verify(KEY, TOKEN, EXPIRY + 5, TTL),
            Err(SignatureError::Expired { seconds_ago: 5 })
        );
        assert_eq!(
            foo().verify(KEY, TOKEN, 0, TTL),
            Err(SignatureError::Missing)
        );
    }

    #[test]
    fn a_new_signature_replaces_the_old_one_and_keeps_other_hints() {
        let mut locator = signed();
        locator.hints.push("K@zzzzz".into());
        let again = locator.sign(KEY, TOKEN, EXPIRY + 1, TTL);
        assert_eq!(again.hints.len(), 2);
        assert_eq!(again.signature().unwrap().expires(), EXPIRY + 1);
        assert_eq!(again.hints[1], "K@zzzzz");
    }

    #[test]
    fn a_signature_of_another_cluster_is_none_of_this_one() {
        let mac = "a".repeat(40);
        let text = format!("acbd18db4cc2f85cedef654fccc4a4d8+3+Rzbbbb-{mac}@65f5e100");
        let locator = Locator::parse(&text).unwrap();
        assert!(locator.signature().is_none());
        assert_eq!(
            locator.verify(KEY, TOKEN, 0, TTL),
            Err(SignatureError::Missing)
        );
        assert!(locator.unsigned().hints.is_empty());
    }
}
