//! Collects what is not in the output, with reasons: the first ones in full, the rest as a count.

use serde::{Deserialize, Serialize};

use super::error::OutputError;

/// Maximum number of entries in full, so that a million pipes do not fill the log.
const MAX_IN_FULL: usize = 100;

/// Maximum length of a sentence in characters: names may be long.
const MAX_CHARS: usize = 1000;

/// What becomes of an entry that cannot be saved: a link that leads nowhere, a file that cannot be
/// read, a name that is not UTF-8.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BadEntries {
    /// It is not in the output; everything else is.
    LeaveOut,
    /// Nothing is saved. Upstream's crunch-run does this.
    #[default]
    Refuse,
}

/// Entries that are not in the output.
#[derive(Debug, Default)]
pub struct LeftOutReport {
    sentences: Vec<String>,
    count: usize,
}

impl LeftOutReport {
    pub fn add(&mut self, sentence: impl FnOnce() -> String) {
        self.count += 1;
        if self.sentences.len() < MAX_IN_FULL {
            self.sentences.push(one_line(&sentence()));
        }
    }

    /// Leaves the entry of this error out, if the rest may be saved without it.
    pub fn add_or_refuse(
        &mut self,
        bad_entries: BadEntries,
        error: OutputError,
    ) -> Result<(), OutputError> {
        if bad_entries == BadEntries::Refuse || !error.costs_one_entry() {
            return Err(error);
        }
        self.add(|| error.to_string());
        Ok(())
    }

    pub fn extend(&mut self, other: Self) {
        self.count += other.count;
        let room = MAX_IN_FULL - self.sentences.len();
        self.sentences
            .extend(other.sentences.into_iter().take(room));
    }

    /// The first entries.
    pub fn sentences(&self) -> &[String] {
        &self.sentences
    }

    /// The number of all entries.
    pub fn count(&self) -> usize {
        self.count
    }

    /// One line for each of the first entries, and one with the number of the others.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let more = self.count - self.sentences.len();
        let more = (more > 0).then(|| format!("and {more} more entries are not in the output"));
        self.sentences.iter().cloned().chain(more)
    }
}

/// A sentence with names that a container chose, as one line of bounded length.
fn one_line(sentence: &str) -> String {
    let shown = sentence.chars().take(MAX_CHARS);
    let mut line: String = shown.flat_map(escape_control).collect();
    if sentence.chars().nth(MAX_CHARS).is_some() {
        line.push('…');
    }
    line
}

fn escape_control(character: char) -> impl Iterator<Item = char> {
    let escaped = character.is_control().then(|| character.escape_default());
    let plain = escaped.is_none().then_some(character);
    escaped.into_iter().flatten().chain(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_makes_neither_a_line_of_its_own_nor_a_long_one() {
        assert_eq!(one_line("a\nb\u{1b}[2Jü"), "a\\nb\\u{1b}[2Jü");
        assert_eq!(one_line(&"x".repeat(5000)).chars().count(), MAX_CHARS + 1);
    }

    #[test]
    fn many_entries_become_a_number() {
        let mut left_out = LeftOutReport::default();
        for i in 0..MAX_IN_FULL {
            left_out.add(|| format!("{i}"));
        }
        let mut more = LeftOutReport::default();
        for i in 0..MAX_IN_FULL + 7 {
            more.add(|| format!("{i}"));
        }
        left_out.extend(more);
        let all: Vec<String> = left_out.lines().collect();
        assert_eq!(
            (all.len(), left_out.count()),
            (MAX_IN_FULL + 1, 2 * MAX_IN_FULL + 7)
        );
        assert_eq!(
            all[MAX_IN_FULL],
            "and 107 more entries are not in the output"
        );
    }
}
