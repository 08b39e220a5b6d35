//! Parses the name of an image, `NAME[:TAG]`.

use std::fmt;
use std::str::FromStr;

use super::ImageError;

/// Registries whose name Docker leaves out, and the directory of their official images.
const DOCKER_HUB: [&str; 3] = ["docker.io/", "index.docker.io/", "registry-1.docker.io/"];
const OFFICIAL: &str = "library/";

/// Name of an image, in the short form of Docker: `docker.io/library/busybox` is `busybox`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageName {
    /// Repository, like `busybox` or `host:5000/team/tool`.
    pub repository: String,
    /// Tag; `latest` if none is given.
    pub tag: String,
}

impl FromStr for ImageName {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        let bad = || ImageError::BadName(text.to_owned());
        // A colon before the last slash belongs to a port.
        let name_at = text.rfind('/').map_or(0, |at| at + 1);
        let (repository, tag) = match text[name_at..].split_once(':') {
            Some((name, tag)) => (&text[..name_at + name.len()], tag),
            None => (text, "latest"),
        };
        let part_ok = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_alphanumeric())
                && part
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "._-:".contains(c))
        };
        let tag_ok = tag.len() <= 128
            && !tag.is_empty()
            && !tag.starts_with(['.', '-'])
            && tag
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
        if !tag_ok || !repository.split('/').all(part_ok) || repository.ends_with(':') {
            return Err(bad());
        }
        Ok(Self {
            repository: short(repository).to_owned(),
            tag: tag.to_owned(),
        })
    }
}

impl ImageName {
    /// All names that mean this one: other clients look an image up by what its user wrote.
    pub fn spellings(&self) -> Vec<String> {
        let hubs = DOCKER_HUB.iter().flat_map(|hub| {
            let official = format!("{hub}{OFFICIAL}{self}");
            [format!("{hub}{self}"), official]
        });
        std::iter::once(self.to_string())
            .chain(hubs)
            .filter(|name| name.parse().is_ok_and(|parsed: Self| parsed == *self))
            .collect()
    }
}

/// The repository without what Docker leaves out.
fn short(repository: &str) -> &str {
    let of_hub = DOCKER_HUB
        .iter()
        .find_map(|hub| repository.strip_prefix(hub));
    match of_hub {
        Some(path) => path.strip_prefix(OFFICIAL).unwrap_or(path),
        None => repository,
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.repository, self.tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_on_docker_hub_has_other_spellings_and_no_other_name_has() {
        let name: ImageName = "busybox:1".parse().unwrap();
        let spellings = name.spellings();
        assert_eq!(spellings[0], "busybox:1");
        for long in ["docker.io/busybox:1", "docker.io/library/busybox:1"] {
            assert!(spellings.iter().any(|one| one == long), "{spellings:?}");
        }
        let of_library: ImageName = "library/busybox:1".parse().unwrap();
        let spellings = of_library.spellings();
        assert!(!spellings.contains(&"docker.io/library/busybox:1".to_owned()));
    }

    #[test]
    fn names_have_a_repository_and_a_tag() {
        let rows = [
            ("busybox", "busybox", "latest"),
            ("busybox:1.36", "busybox", "1.36"),
            ("host:5000/a/b", "host:5000/a/b", "latest"),
            ("host:5000/a/b:x_1", "host:5000/a/b", "x_1"),
            ("docker.io/library/busybox:1", "busybox", "1"),
            ("index.docker.io/team/tool", "team/tool", "latest"),
            ("library/busybox", "library/busybox", "latest"),
            ("quay.io/library/x", "quay.io/library/x", "latest"),
        ];
        for (text, repository, tag) in rows {
            let name: ImageName = text.parse().unwrap();
            assert_eq!((&*name.repository, &*name.tag), (repository, tag), "{text}");
        }
        for bad in ["", ":x", "a:", "a b", "/a", "a//b", "a:b:c", "a:-x", "-a"] {
            assert!(bad.parse::<ImageName>().is_err(), "{bad}");
        }
    }
}
