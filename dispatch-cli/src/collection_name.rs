//! Names of collections: what a server takes as one, made out of any text, or checked where a person chose it.

/// Maximum length of a name made here, in characters. Servers keep 255, and append a time to a name that is taken.
const MAX_LENGTH: usize = 200;

/// A name that servers accept, for a collection that is called after something else: a job, an image, a path.
/// Servers refuse `/`, which becomes `_`.
pub fn from_text(text: &str) -> String {
    text.replace('/', "_").chars().take(MAX_LENGTH).collect()
}

/// A name that a person gave, as it is, if servers accept it.
pub fn given(text: &str) -> Result<String, String> {
    match text {
        "" | "." | ".." => Err("a collection needs a name other than this".to_owned()),
        text if text.contains('/') => Err(format!(
            "the name of a collection cannot contain a /: write {:?}, for example",
            from_text(text)
        )),
        text => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_becomes_a_name_that_servers_accept() {
        let long = "x".repeat(300);
        // text, name made of it, accepted as it is
        let rows = [
            ("Output of sh", "Output of sh", true),
            ("Output of a/b", "Output of a_b", false),
            (
                "Docker image acme/tool:v1 sha256:0123",
                "Docker image acme_tool:v1 sha256:0123",
                false,
            ),
            ("/", "_", false),
            ("..", "..", false),
            ("", "", false),
            ("../..", ".._..", false),
            ("größe ∕", "größe ∕", true),
            (&long, &long[..200], true),
        ];
        for (text, name, accepted) in rows {
            assert_eq!(from_text(text), name, "{text}");
            assert_eq!(given(text).is_ok(), accepted, "{text}");
        }
        let said = given("a/b").unwrap_err();
        assert!(
            said.contains("cannot contain a /") && said.contains("a_b"),
            "{said}"
        );
    }
}
