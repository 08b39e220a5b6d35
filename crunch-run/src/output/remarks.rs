//! What the user should know about the output: said in full up to a limit, counted beyond it.

/// A directory of a million pipes must not make a log of a million lines.
const MOST: usize = 100;

#[derive(Debug, Default)]
pub struct Remarks {
    said: Vec<String>,
    more: usize,
}

impl Remarks {
    pub fn add(&mut self, remark: impl FnOnce() -> String) {
        match self.said.len() < MOST {
            true => self.said.push(remark()),
            false => self.more += 1,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &String> {
        self.said.iter()
    }

    /// To be called once, when nothing more will be added.
    pub fn finish(&mut self) {
        if self.more > 0 {
            let more = std::mem::take(&mut self.more);
            self.said.push(format!("and {more} more of this kind"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_remarks_become_a_number() {
        let mut remarks = Remarks::default();
        for i in 0..MOST + 7 {
            remarks.add(|| format!("{i}"));
        }
        remarks.finish();
        let all: Vec<&String> = remarks.iter().collect();
        assert_eq!(all.len(), MOST + 1);
        assert_eq!(all[MOST], "and 7 more of this kind");
    }
}
