//! Selects files of the output by `output_glob`. In: patterns, where `**` spans directories. Out:
//! whether a path is selected.

use regex::Regex;

use super::pattern::regex as matcher;

/// The patterns of one container. Without patterns, every file is selected.
#[derive(Debug)]
pub struct Globs {
    /// `None` selects everything.
    patterns: Option<Vec<Pattern>>,
}

#[derive(Debug)]
struct Pattern {
    whole: Regex,
    /// The pattern before a final `/**`, which also means the directory itself.
    directory: Option<Regex>,
    /// `None` if the pattern cannot be split at slashes; it could then match anywhere.
    parts: Option<Vec<Part>>,
}

#[derive(Debug)]
enum Part {
    AnyDepth,
    Name(Regex),
}

impl Globs {
    /// An invalid pattern matches nothing; the second value has one sentence for each.
    pub fn new(texts: &[String]) -> (Self, Vec<String>) {
        let (mut patterns, mut misunderstood) = (Vec::new(), Vec::new());
        for text in texts {
            match Pattern::new(text) {
                Ok(pattern) => patterns.push(pattern),
                Err(error) => misunderstood.push(format!(
                    "output_glob {text:?} matches nothing because it is not a valid pattern: {error}"
                )),
            }
        }
        let patterns = (!texts.is_empty()).then_some(patterns);
        (Self { patterns }, misunderstood)
    }

    /// Whether every file is selected.
    pub fn is_everything(&self) -> bool {
        self.patterns.is_none()
    }

    /// Whether the file at `path` (relative to the output) is selected.
    pub fn wants_file(&self, path: &str) -> bool {
        self.any(|pattern| pattern.whole.is_match(path))
    }

    /// Whether the directory at `path` is selected even if no file in it is.
    pub fn wants_directory(&self, path: &str) -> bool {
        self.any(|pattern| {
            let directory = pattern.directory.as_ref();
            pattern.whole.is_match(path) || directory.is_some_and(|glob| glob.is_match(path))
        })
    }

    /// Whether a file below `path` could be selected, whatever its name. The root is the empty
    /// path.
    pub fn could_want_below(&self, path: &str) -> bool {
        path.is_empty() || self.any(|pattern| pattern.could_match_below(path))
    }

    fn any(&self, test: impl Fn(&Pattern) -> bool) -> bool {
        let patterns = self.patterns.as_ref();
        patterns.is_none_or(|patterns| patterns.iter().any(test))
    }
}

impl Pattern {
    fn new(text: &str) -> Result<Self, String> {
        // Compiled first, because its error reports a pattern that is too long as a whole.
        let whole = matcher(text)?;
        let directory = text.strip_suffix("/**").map(matcher).transpose()?;
        let parts = split(text).map(|parts| {
            let part = |part: &&str| match *part {
                "**" => Ok(Part::AnyDepth),
                name => matcher(name).map(Part::Name),
            };
            parts.iter().map(part).collect::<Result<Vec<_>, _>>()
        });
        Ok(Self {
            whole,
            directory,
            // If a part alone is not a valid pattern, the whole pattern still is.
            parts: parts.and_then(Result::ok),
        })
    }

    fn could_match_below(&self, path: &str) -> bool {
        let Some(parts) = &self.parts else {
            return true;
        };
        let mut parts = parts.iter();
        for name in path.split('/') {
            match parts.next() {
                Some(Part::AnyDepth) => return true,
                Some(Part::Name(glob)) if glob.is_match(name) => {}
                _ => return false,
            }
        }
        parts.next().is_some()
    }
}

/// Splits a pattern at its slashes. Slashes in character classes do not count. A pattern with
/// alternatives or with an escaped slash is not split.
fn split(text: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut begin, mut escaped) = (0, false);
    // Inside a class: whether it has a character yet. A bracket that comes first is literal.
    let mut class: Option<bool> = None;
    for (at, c) in text.char_indices() {
        if escaped {
            escaped = false;
            if c == '/' {
                return None;
            }
            class = class.map(|_| true);
            continue;
        }
        match (c, class) {
            ('\\', _) => escaped = true,
            (']', Some(true)) => class = None,
            ('!' | '^', Some(false)) if text[..at].ends_with('[') => {}
            (_, Some(_)) => class = Some(true),
            ('[', None) => class = Some(false),
            ('{', None) => return None,
            ('/', None) => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    Some(parts)
}

#[cfg(test)]
mod tests {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::{TimeVal, TimeValLike};

    use super::*;

    fn globs(text: &str) -> Globs {
        Globs::new(&[text.to_owned()]).0
    }

    #[test]
    fn a_directory_is_wanted_for_what_it_may_hold_and_a_file_for_itself() {
        const YES: bool = true;
        const NO: bool = false;
        let cases = [
            ("foo*/**", "foo", YES, NO),
            ("foo*/**", "food", YES, NO),
            ("foo*/**", "foo/bar", YES, YES),
            ("foo*/**", "food/bar", YES, YES),
            ("foo*/**", "fo", NO, NO),
            ("ba[!/]/foo*/**", "bar/foo", YES, NO),
            ("ba[!/]/foo*/**", "bar/foo/x", YES, YES),
            ("ba[!/]/foo*/**", "bar/foo/[a\\]", YES, YES),
            ("waz/**/foo*/**", "waz/quux/foo", YES, NO),
            ("waz/**/foo*/**", "waz/quux/foo/foo", YES, YES),
            ("waz/**/foo*/**", "waz/foo", YES, NO),
            ("foo/**/*", "foo", NO, NO),
            ("foo/**/*", "foo/bar", YES, YES),
            ("foo/**/*", "foo/bar/baz", YES, YES),
            ("foo/**/*", "foo/bar/baz/waz", YES, YES),
            ("**", "a/b", YES, YES),
            ("*", ".hidden", YES, YES),
            ("a{b,c/d}", "ac/d", YES, YES),
            ("\\*", "*", YES, YES),
            ("\\*", "x", NO, NO),
            ("\\", "\\", NO, NO),
            ("[", "[", NO, NO),
        ];
        for (glob, path, directory, file) in cases {
            let globs = globs(glob);
            assert_eq!(globs.wants_directory(path), directory, "{glob} {path}/");
            assert_eq!(globs.wants_file(path), file, "{glob} {path}");
        }
    }

    #[test]
    fn a_mount_that_cannot_hold_a_match_is_known_by_its_path() {
        let cases = [
            ("abc", "*", false),
            ("abc", "abc/*", true),
            ("abc", "a*/**", true),
            ("abc", "**", true),
            ("abc", "*/*", true),
            ("abc", "**/*.txt", true),
            ("abc/def", "*", false),
            ("abc/def", "*/*", false),
            ("abc/def", "*/*.txt", false),
            ("abc/def", "*/*/*", true),
            ("abc/def", "**", true),
            ("abc/def", "**/bar", true),
            ("abc/def", "abc/**", true),
            ("abc/def/ghi", "*c/**/bar", true),
            ("abc/def/ghi", "*c/*f/bar", false),
            ("abc/def/ghi", "abc/d[^/]f/ghi/*", true),
            ("abc/def", "{abc/def,x}/y", true),
            ("abc", r"*\/a*", true),
            ("abc", "[]/x]bc/y", false),
            ("]bc", "[]/x]bc/y", true),
            ("xbc", "[^]/a]bc/y", true),
            ("", "x", true),
        ];
        for (path, glob, expected) in cases {
            assert_eq!(
                globs(glob).could_want_below(path),
                expected,
                "{glob} {path}"
            );
        }
    }

    /// CPU time of this thread, independent of the machine's load.
    fn busy() -> TimeVal {
        let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
        usage.user_time() + usage.system_time()
    }

    /// Matching time grows with the pattern times the path, as `regex` guarantees; so patterns have
    /// a maximum size.
    #[test]
    fn no_pattern_takes_long_for_the_longest_path() {
        let path = format!("{}b", "a/".repeat(2000));
        for (text, is_too_long) in [
            ("**/".repeat(5000) + "x", false),
            ("**/*/".repeat(400), false),
            ("{a,*,*/}".repeat(300), false),
            ("*a".repeat(50_000), true),
            ("**/*/".repeat(50_000), true),
            ("{*,*/}".repeat(50_000), true),
        ] {
            let (globs, misunderstood) = Globs::new(std::slice::from_ref(&text));
            let (said, text) = (misunderstood.concat(), &text[..12]);
            assert_eq!(said.ends_with("it is too long"), is_too_long, "{text}");
            let begun = busy();
            globs.wants_file(&path);
            globs.wants_directory(&path);
            globs.could_want_below(&path);
            assert!(busy() - begun < TimeVal::seconds(20), "{text}");
        }
        let many = format!("{{{}}}", "some/file-of-some-name.txt,".repeat(500));
        assert!(globs(&many).wants_file("some/file-of-some-name.txt"));
        assert!(globs("**/**/a/**/**/**/b").wants_file("x/a/b"));
        assert!(!globs("**/**/a/**/**/**/b").wants_file("x/a/xb"));
    }

    #[test]
    fn no_pattern_is_everything_and_a_bad_one_is_nothing() {
        let (all, _) = Globs::new(&[]);
        assert!(all.is_everything() && all.wants_file("a/b") && all.could_want_below("a"));
        let bad = globs("\\");
        assert!(!bad.is_everything() && !bad.wants_file("a"));
        let (one_is_good, warnings) = Globs::new(&["\\".to_owned(), "foo".to_owned()]);
        assert!(
            warnings.len() == 1 && warnings[0].starts_with(r#"output_glob "\\" matches nothing"#)
        );
        assert!(one_is_good.wants_file("foo") && !one_is_good.wants_file("bar"));
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    /// A plain definition of patterns of names, `*`, `?` and `**`.
    fn means(pattern: &[&str], path: &[&str]) -> bool {
        match (pattern, path) {
            ([], []) => true,
            // At the end, `**` matches the content of a directory: at least one name.
            (["**"], path) => !path.is_empty(),
            (["**", rest @ ..], path) => (0..=path.len()).any(|skip| means(rest, &path[skip..])),
            ([first, rest @ ..], [name, below @ ..]) => {
                let (first, name): (Vec<char>, Vec<char>) =
                    (first.chars().collect(), name.chars().collect());
                is_name(&first, &name) && means(rest, below)
            }
            _ => false,
        }
    }

    fn is_name(pattern: &[char], name: &[char]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            (['*', rest @ ..], name) => (0..=name.len()).any(|skip| is_name(rest, &name[skip..])),
            (['?', rest @ ..], [_, name @ ..]) => is_name(rest, name),
            ([c, rest @ ..], [d, name @ ..]) => c == d && is_name(rest, name),
            _ => false,
        }
    }

    fn patterns() -> impl Strategy<Value = Vec<&'static str>> {
        let part = prop::sample::select(vec!["a", "b", "ab", "*", "?", "a*", "*b", "?b", "**"]);
        prop::collection::vec(part, 1..5)
    }

    fn paths() -> impl Strategy<Value = Vec<&'static str>> {
        let name = prop::sample::select(vec!["a", "b", "ab", "ba", "aab", ".a", "ü"]);
        prop::collection::vec(name, 1..6)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn a_pattern_matches_what_it_means(pattern in patterns(), path in paths()) {
            let globs = Globs::new(&[pattern.join("/")]).0;
            prop_assert_eq!(globs.wants_file(&path.join("/")), means(&pattern, &path));
        }

        /// Below a directory that is skipped, no path is selected.
        #[test]
        fn above_what_is_wanted_nothing_is_passed_over(pattern in patterns(), path in paths()) {
            let globs = Globs::new(&[pattern.join("/")]).0;
            let text = path.join("/");
            if globs.wants_file(&text) || globs.wants_directory(&text) {
                for above in 1..path.len() {
                    prop_assert!(globs.could_want_below(&path[..above].join("/")));
                }
            }
        }

        /// The same for arbitrary patterns.
        #[test]
        fn no_text_is_too_odd_for_a_pattern(
            text in prop_oneof![".{0,12}", r"[ab/*?\[\]!^{},\\-]{0,10}"],
            path in "[ab\\]\\[/]{0,8}",
        ) {
            let (globs, _) = Globs::new(&[text]);
            let parts: Vec<&str> = path.split('/').collect();
            let is_path = parts.iter().all(|part| !part.is_empty());
            if is_path && (globs.wants_file(&path) || globs.wants_directory(&path)) {
                for above in 1..parts.len() {
                    prop_assert!(globs.could_want_below(&parts[..above].join("/")));
                }
            }
        }
    }
}
