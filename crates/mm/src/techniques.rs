//! Which techniques a machine runs with.

use core::fmt;
use quire_frame::PcpTechnique;
use quire_space::{GatherTechnique, RemapTechnique, TablesTechnique};
use quire_swap::SwapTechnique;

/// A switch for each technique: its value is the strategy that is chosen when a [`Memory`](crate::Memory) is
/// built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Techniques {
    /// Which orders the per-CPU lists hold: `order0`, `posted` (0 to 3) or `all` (up to the PMD's).
    pub pcp: PcpTechnique,
    /// How mappings are taken down: `pages` (one at a time) or `runs` (of one folio).
    pub gather: GatherTechnique,
    /// What becomes of empty tables: `keep` or `free`.
    pub tables: TablesTechnique,
    /// In which pieces `mremap` moves: `ptes` or `puds`.
    pub mremap: RemapTechnique,
    /// How swap synchronises: `bypass` or `all`.
    pub swap: SwapTechnique,
}

/// Why a switch could not be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TechniqueError {
    /// There is no such technique.
    UnknownName,
    /// The technique has no such strategy; these it has.
    UnknownValue(&'static [&'static str]),
}

impl fmt::Display for TechniqueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownName => write!(f, "no such technique; known: {}", Joined(Techniques::NAMES)),
            Self::UnknownValue(known) => write!(f, "no such value; known: {}", Joined(known)),
        }
    }
}

impl core::error::Error for TechniqueError {}

impl Techniques {
    /// Names of all switches.
    pub const NAMES: &'static [&'static str] = &["pcp", "gather", "tables", "mremap", "swap"];
    const GATHER_VALUES: &'static [&'static str] = &["pages", "runs"];
    const MREMAP_VALUES: &'static [&'static str] = &["ptes", "puds"];
    const SWAP_VALUES: &'static [&'static str] = &["bypass", "all"];
    const TABLES_VALUES: &'static [&'static str] = &["keep", "free"];
    const PCP_VALUES: &'static [&'static str] = &["order0", "posted", "all"];

    /// Sets the switch `name` to `value`, as the command line does.
    ///
    /// # Errors
    ///
    /// [`TechniqueError`]; nothing is changed then.
    #[doc(hidden)]
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), TechniqueError> {
        match (name, value) {
            ("pcp", _) => {
                let chosen = PcpTechnique::COMPARED.into_iter().find(|technique| technique.name() == value);
                self.pcp = chosen.ok_or(TechniqueError::UnknownValue(Self::PCP_VALUES))?;
            }
            ("gather", _) => {
                let chosen = GatherTechnique::ALL.into_iter().find(|technique| technique.name() == value);
                self.gather = chosen.ok_or(TechniqueError::UnknownValue(Self::GATHER_VALUES))?;
            }
            ("tables", _) => {
                let chosen = TablesTechnique::ALL.into_iter().find(|technique| technique.name() == value);
                self.tables = chosen.ok_or(TechniqueError::UnknownValue(Self::TABLES_VALUES))?;
            }
            ("mremap", _) => {
                let chosen = RemapTechnique::ALL.into_iter().find(|technique| technique.name() == value);
                self.mremap = chosen.ok_or(TechniqueError::UnknownValue(Self::MREMAP_VALUES))?;
            }
            ("swap", _) => {
                let chosen = SwapTechnique::ALL.into_iter().find(|technique| technique.name() == value);
                self.swap = chosen.ok_or(TechniqueError::UnknownValue(Self::SWAP_VALUES))?;
            }
            _ => return Err(TechniqueError::UnknownName),
        }
        Ok(())
    }
}

/// A list of words, separated by commas.
struct Joined(&'static [&'static str]);

impl fmt::Display for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, word) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            f.write_str(word)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_set_by_name_and_a_wrong_word_changes_nothing() {
        let mut techniques = Techniques::default();
        assert_eq!(techniques.set("pcp", "order0"), Ok(()));
        assert_eq!(techniques.pcp, PcpTechnique::OrderZero);
        assert_eq!(techniques.set("pcp", "some"), Err(TechniqueError::UnknownValue(Techniques::PCP_VALUES)));
        for (name, technique) in Techniques::PCP_VALUES.iter().zip(PcpTechnique::COMPARED) {
            let mut techniques = Techniques::default();
            assert_eq!(techniques.set("pcp", name), Ok(()));
            assert_eq!(techniques.pcp, technique);
        }
        for (name, technique) in Techniques::GATHER_VALUES.iter().zip(GatherTechnique::ALL) {
            let mut techniques = Techniques::default();
            assert_eq!(techniques.set("gather", name), Ok(()));
            assert_eq!(techniques.gather, technique);
        }
        for (name, technique) in Techniques::TABLES_VALUES.iter().zip(TablesTechnique::ALL) {
            let mut techniques = Techniques::default();
            assert_eq!(techniques.set("tables", name), Ok(()));
            assert_eq!(techniques.tables, technique);
        }
        for (name, technique) in Techniques::MREMAP_VALUES.iter().zip(RemapTechnique::ALL) {
            let mut techniques = Techniques::default();
            assert_eq!(techniques.set("mremap", name), Ok(()));
            assert_eq!(techniques.mremap, technique);
        }
        for (name, technique) in Techniques::SWAP_VALUES.iter().zip(SwapTechnique::ALL) {
            let mut techniques = Techniques::default();
            assert_eq!(techniques.set("swap", name), Ok(()));
            assert_eq!(techniques.swap, technique);
        }
        assert_eq!(techniques.set("pcb", "order0"), Err(TechniqueError::UnknownName));
        assert_eq!(techniques.pcp, PcpTechnique::OrderZero);
    }
}
