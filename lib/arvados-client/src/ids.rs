//! Identifiers of the Arvados API as types: one newtype per kind of object, and the portable data
//! hash.
//!
//! A uuid is `CCCCC-KKKKK-XXXXXXXXXXXXXXX`: cluster and kind of `[a-z0-9]`, and a tail of 15
//! characters (<https://doc.arvados.org/api/resources.html>). Servers also write Keep services with
//! 16 characters, and letters of either case, in the tail. A uuid keeps the spelling it was read
//! in.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Why a text is not an identifier of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Not `CCCCC-KKKKK-XXXXXXXXXXXXXXX`.
    #[error("{0:?} is not an Arvados uuid (like zzzzz-dz642-0123456789abcde)")]
    NotUuid(String),
    /// A uuid, but of another kind of object.
    #[error("{text:?} is not the uuid of a {kind} (those have -{infix}- in the middle)")]
    WrongKind {
        /// The text given.
        text: String,
        /// What was expected, in words.
        kind: &'static str,
        /// The five characters that stand for it.
        infix: &'static str,
    },
    /// Not `32hex+size`.
    #[error("{0:?} is not a portable data hash (32 hex digits, +, size)")]
    NotPdh(String),
}

/// Usual length of a uuid.
pub const UUID_LENGTH: usize = 27;
/// Maximum length of a uuid: that of Keep services whose volume has no `Rendezvous`.
const MAX_UUID_LENGTH: usize = 28;

/// The part in the middle of a uuid, if the text has the shape of one.
fn infix(text: &str) -> Option<&str> {
    let ok = (UUID_LENGTH..=MAX_UUID_LENGTH).contains(&text.len())
        && text.bytes().enumerate().all(|(i, b)| match i {
            5 | 11 => b == b'-',
            0..11 => b.is_ascii_lowercase() || b.is_ascii_digit(),
            _ => b.is_ascii_alphanumeric(),
        });
    ok.then(|| &text[6..11])
}

fn random_suffix() -> String {
    const ALPHABET: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    (0..15)
        .map(|_| ALPHABET[fastrand::usize(..ALPHABET.len())] as char)
        .collect()
}

/// The characters of a uuid, stored inline for fast comparison, with 0 after the last.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct InlineText([u8; MAX_UUID_LENGTH]);

impl InlineText {
    /// Stores a text with the form of a uuid; any other text is truncated.
    fn of(text: &str) -> Self {
        let mut name = [b'0'; MAX_UUID_LENGTH];
        name[UUID_LENGTH] = 0;
        for (to, from) in name.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        Self(name)
    }
}

impl AsRef<str> for InlineText {
    fn as_ref(&self) -> &str {
        let length = match self.0[UUID_LENGTH] {
            0 => UUID_LENGTH,
            _ => MAX_UUID_LENGTH,
        };
        std::str::from_utf8(&self.0[..length]).unwrap_or_default()
    }
}

macro_rules! text_newtype {
    ($name:ident) => {
        impl $name {
            /// The identifier as text.
            pub fn as_str(&self) -> &str {
                self.0.as_ref()
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::parse(text)
            }
        }
        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                Self::parse(&text)
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.as_str().to_owned()
            }
        }
    };
}

macro_rules! uuid_kind {
    ($(#[$doc:meta])* $name:ident, $infix:literal, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(InlineText);

        impl $name {
            /// Checks shape and kind.
            pub fn parse(text: &str) -> Result<Self, IdError> {
                match infix(text) {
                    None => Err(IdError::NotUuid(text.to_owned())),
                    Some(i) if i != $infix => Err(IdError::WrongKind {
                        text: text.to_owned(),
                        kind: $kind,
                        infix: $infix,
                    }),
                    Some(_) => Ok(Self(InlineText::of(text))),
                }
            }

            /// A new random identifier in `cluster` (five characters of `[a-z0-9]`).
            pub fn generate(cluster: &str) -> Self {
                Self(InlineText::of(&format!("{cluster}-{}-{}", $infix, random_suffix())))
            }
        }

        text_newtype!($name);
    };
}

uuid_kind!(
    /// A container: one thing to run.
    ContainerUuid, "dz642", "container");
uuid_kind!(
    /// A container request: a request of a user to run a container.
    ContainerRequestUuid, "xvhdp", "container request");
uuid_kind!(
    /// A collection: a set of files in Keep.
    CollectionUuid, "4zz18", "collection");
uuid_kind!(
    /// An API client authorization, that is, a token.
    TokenUuid, "gj3su", "token");
uuid_kind!(
    /// A user.
    UserUuid, "tpzed", "user");
uuid_kind!(
    /// A group or project.
    GroupUuid, "j7d0g", "group");
uuid_kind!(
    /// A link between two objects.
    LinkUuid, "o0j2j", "link");
uuid_kind!(
    /// A Keep service.
    KeepServiceUuid, "bi6l4", "Keep service");

/// A uuid of any kind, where the API allows several (owner, object of a log record).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Uuid(InlineText);

impl Uuid {
    /// Checks the shape; any kind is accepted.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        match infix(text) {
            Some(_) => Ok(Self(InlineText::of(text))),
            None => Err(IdError::NotUuid(text.to_owned())),
        }
    }
}
text_newtype!(Uuid);

/// A portable data hash: MD5 of a normalised manifest, `+`, its length in bytes. Names content, not
/// an object.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pdh(Box<str>);

impl Pdh {
    /// The hash of the empty collection.
    pub const EMPTY: &'static str = "d41d8cd98f00b204e9800998ecf8427e+0";

    /// Checks the shape `32hex+size`.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let ok = text.split_once('+').is_some_and(|(hash, size)| {
            hash.len() == 32
                && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
                && size.parse::<u64>().is_ok()
                && size.bytes().all(|b| b.is_ascii_digit())
        });
        match ok {
            true => Ok(Self(text.into())),
            false => Err(IdError::NotPdh(text.to_owned())),
        }
    }
}
text_newtype!(Pdh);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_accepted_only_as_its_own_kind() {
        let text = "zzzzz-dz642-0123456789abcde";
        assert_eq!(ContainerUuid::parse(text).unwrap().as_str(), text);
        assert!(matches!(
            UserUuid::parse(text),
            Err(IdError::WrongKind { kind: "user", .. })
        ));
        for bad in [
            "",
            "zzzzz-dz642-0123456789abcd",
            "ZZZZZ-dz642-0123456789abcde",
            "zzzzz_dz642-0123456789abcde",
            "zzzzz-dz642-0123456789abcdé",
        ] {
            assert!(
                matches!(ContainerUuid::parse(bad), Err(IdError::NotUuid(_))),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_uuid_is_read_and_written_as_the_server_spells_it() {
        // uuid, accepted
        let rows = [
            ("zzzzz-bi6l4-000000000000001", true),
            ("zzzzz-bi6l4-887edefe27fc75f4", true),
            ("zzzzz-bi6l4-RendezvousPoint", true),
            ("zzzzz-bi6l4-RENDEZVOUSpoint1", true),
            ("zzzzz-BI6L4-000000000000001", false),
            ("Zzzzz-bi6l4-000000000000001", false),
            ("zzzzz-bi6l4-00000000000001", false),
            ("zzzzz-bi6l4-887edefe27fc75f45", false),
            ("zzzzz-bi6l4-887edefe27fc75f-", false),
            ("zzzzz-bi6l4-00000000000000\0", false),
            ("zzzzz-bi6l4-../../../../etc", false),
        ];
        for (text, accepted) in rows {
            let json = serde_json::to_string(text).unwrap();
            match serde_json::from_str::<KeepServiceUuid>(&json) {
                Ok(uuid) => {
                    assert!(accepted, "{text}");
                    assert_eq!(uuid.as_str(), text);
                    assert_eq!(serde_json::to_string(&uuid).unwrap(), json);
                    assert_eq!(infix(Uuid::parse(text).unwrap().as_str()), Some("bi6l4"));
                }
                Err(_) => assert!(!accepted, "{text}"),
            }
        }
        let lower = KeepServiceUuid::parse("zzzzz-bi6l4-rendezvouspoint").unwrap();
        assert_ne!(lower.as_str(), "zzzzz-bi6l4-RendezvousPoint");
    }

    #[test]
    fn generated_uuids_parse_back() {
        let id = ContainerUuid::generate("abcde");
        assert_eq!(ContainerUuid::parse(id.as_str()).unwrap(), id);
    }

    #[test]
    fn a_pdh_needs_32_hex_digits_and_a_size() {
        assert!(Pdh::parse(Pdh::EMPTY).is_ok());
        for bad in [
            "",
            "d41d8cd98f00b204e9800998ecf8427e",
            "d41d8cd98f00b204e9800998ecf8427e+",
            "d41d8cd98f00b204e9800998ecf8427e+x",
            "D41d8cd98f00b204e9800998ecf8427e+0",
            "d41d8cd98f00b204e9800998ecf8427e++1",
        ] {
            assert!(Pdh::parse(bad).is_err(), "{bad}");
        }
    }
}
