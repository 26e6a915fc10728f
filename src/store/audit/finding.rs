//! What an audit has to say.

use serde::Serialize;

/// Most findings that are kept one by one; beyond, they are only counted.
const FINDINGS_MAX: usize = 1_000;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Grade {
    /// Worth knowing, nothing is wrong.
    Note,
    /// What a kill or a power cut leaves; the next start makes it good.
    Mends,
    /// Something is wrong: it is not as a broker leaves it, whatever happens to the machine.
    Damage,
}

/// One thing that an audit found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub grade: Grade,
    /// Which part of the store: `commit log`, `queue`, `index`, `checkpoint` …
    pub part: &'static str,
    /// Where: a file, a queue, a position.
    pub place: String,
    /// What.
    pub text: String,
}

/// Everything that an audit found, in the order of finding.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Findings {
    /// The first ones.
    pub list: Vec<Finding>,
    /// How many were damage, those left out included.
    pub damage: u64,
    /// How many findings are not in the list.
    pub left_out: u64,
}

impl Findings {
    /// Adds a finding.
    #[expect(clippy::needless_pass_by_value, reason = "a place is most often made for the call")]
    pub fn add(&mut self, grade: Grade, part: &'static str, place: impl ToString, text: &str) {
        self.damage += u64::from(grade == Grade::Damage);
        // Damage is never left out for notes that came first.
        if self.list.len() >= FINDINGS_MAX {
            self.left_out += 1;
            let note = self.list.iter().position(|finding| finding.grade < grade);
            let Some(note) = note else { return };
            self.list.remove(note);
        }
        self.list.push(Finding { grade, part, place: place.to_string(), text: text.to_owned() });
    }

    /// Adds damage.
    pub fn damage(&mut self, part: &'static str, place: impl ToString, text: &str) {
        self.add(Grade::Damage, part, place, text);
    }

    /// Adds what the next start makes good.
    pub fn mends(&mut self, part: &'static str, place: impl ToString, text: &str) {
        self.add(Grade::Mends, part, place, text);
    }

    /// Adds what is worth knowing.
    pub fn note(&mut self, part: &'static str, place: impl ToString, text: &str) {
        self.add(Grade::Note, part, place, text);
    }

    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.damage == 0
    }
}
