//! Collects warnings about the output: the first ones in full, the rest as a count.

/// Maximum number of warnings in full, so that a million pipes do not fill the log.
const MAX_WARNINGS: usize = 100;

#[derive(Debug, Default)]
pub struct Warnings {
    texts: Vec<String>,
    more: usize,
}

impl Warnings {
    pub fn add(&mut self, warning: impl FnOnce() -> String) {
        match self.texts.len() < MAX_WARNINGS {
            true => self.texts.push(warning()),
            false => self.more += 1,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &String> {
        self.texts.iter()
    }

    /// Adds the count of omitted warnings. Call it once, at the end.
    pub fn finish(&mut self) {
        if self.more > 0 {
            let more = std::mem::take(&mut self.more);
            self.texts.push(format!("and {more} more of this kind"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_remarks_become_a_number() {
        let mut warnings = Warnings::default();
        for i in 0..MAX_WARNINGS + 7 {
            warnings.add(|| format!("{i}"));
        }
        warnings.finish();
        let all: Vec<&String> = warnings.iter().collect();
        assert_eq!(all.len(), MAX_WARNINGS + 1);
        assert_eq!(all[MAX_WARNINGS], "and 7 more of this kind");
    }
}
