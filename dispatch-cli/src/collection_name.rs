//! Names of collections that servers accept: made from any text, or checked where a user gives one.

/// Maximum length of a name made here, in characters. Servers allow 255, and append a time to a
/// name that is in use.
const MAX_LENGTH: usize = 200;

/// A name that servers accept, made from the name of a job, an image or a path. Servers refuse `/`,
/// so it becomes `_`.
pub fn from_text(text: &str) -> String {
    text.replace('/', "_").chars().take(MAX_LENGTH).collect()
}

/// Checks that servers accept a name that the user gave.
pub fn parse(text: &str) -> Result<String, String> {
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
            assert_eq!(parse(text).is_ok(), accepted, "{text}");
        }
        let error = parse("a/b").unwrap_err();
        assert!(
            error.contains("cannot contain a /") && error.contains("a_b"),
            "{error}"
        );
    }
}
