//! Which techniques a machine runs with.

use core::fmt;
use quire_frame::PcpTechnique;
use quire_space::{GatherTechnique, RemapTechnique, TablesTechnique};
use quire_swap::SwapTechnique;

/// A switch for each technique: its value is the strategy chosen when a [`Memory`](crate::Memory) is built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Techniques {
    /// Which orders the per-CPU lists hold: `order0`, `posted` (0 to 3) or `all` (up to the PMD's).
    pub pcp: PcpTechnique,
    /// How mappings are torn down: `pages` (one at a time) or `runs` (of one folio).
    pub gather: GatherTechnique,
    /// What happens to empty tables: `keep` or `free`.
    pub tables: TablesTechnique,
    /// In which pieces `mremap` moves: `ptes` or `puds`.
    pub mremap: RemapTechnique,
    /// How swap synchronises: `bypass` or `all`.
    pub swap: SwapTechnique,
}

/// Why a switch could not be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TechniqueError {
    /// There is no such technique.
    #[error("no such technique; known: {}", Joined(Techniques::NAMES))]
    UnknownName,
    /// The technique has no such strategy; these are the known ones.
    #[error("no such value; known: {}", Joined(.0))]
    UnknownValue(&'static [&'static str]),
}

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
        match name {
            "pcp" => self.pcp = by_name(PcpTechnique::COMPARED, |it| it.name(), value, Self::PCP_VALUES)?,
            "gather" => {
                self.gather = by_name(GatherTechnique::ALL, |it| it.name(), value, Self::GATHER_VALUES)?;
            }
            "tables" => {
                self.tables = by_name(TablesTechnique::ALL, |it| it.name(), value, Self::TABLES_VALUES)?;
            }
            "mremap" => {
                self.mremap = by_name(RemapTechnique::ALL, |it| it.name(), value, Self::MREMAP_VALUES)?;
            }
            "swap" => self.swap = by_name(SwapTechnique::ALL, |it| it.name(), value, Self::SWAP_VALUES)?,
            _ => return Err(TechniqueError::UnknownName),
        }
        Ok(())
    }
}

/// The strategy in `all`, whose names are `known`, that has the name `value`.
fn by_name<T, const N: usize>(
    all: [T; N],
    name: impl Fn(&T) -> &'static str,
    value: &str,
    known: &'static [&'static str],
) -> Result<T, TechniqueError> {
    all.into_iter().find(|strategy| name(strategy) == value).ok_or(TechniqueError::UnknownValue(known))
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
