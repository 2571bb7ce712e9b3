//! The techniques whose strategies are compared.

use quire_mm::Techniques;

/// A technique whose strategies an experiment compares.
#[derive(Debug)]
pub struct Technique {
    /// The experiment's name.
    pub name: &'static str,
    /// What the memory manager calls it.
    chosen_by: &'static str,
    /// Names of the strategies. The first is what ours, the last, is compared with.
    pub strategies: &'static [&'static str],
    /// What the first is called in a sentence.
    pub before_text: &'static str,
    /// The unit of ratios of times, which are to the first's.
    pub(crate) ratio: &'static str,
}

/// One of its name, with its strategies, what the first is in a sentence, and what a ratio is to.
const fn technique(
    name: &'static str,
    strategies: &'static [&'static str],
    before_text: &'static str,
    ratio: &'static str,
) -> Technique {
    Technique { name, chosen_by: name, strategies, before_text, ratio }
}

pub(crate) static PCP: Technique =
    technique("pcp", &["order0", "posted", "all"], "with lists of order 0 only", "to order0");
pub(crate) static GATHER: Technique = technique("gather", &["pages", "runs"], "page by page", "to pages");
pub(crate) static TABLES: Technique =
    technique("tables", &["keep", "free"], "with empty tables kept", "to keep");
pub(crate) static MREMAP: Technique = technique("mremap", &["ptes", "puds"], "entry by entry", "to ptes");
pub(crate) static SWAP: Technique = technique("swap", &["bypass", "all"], "past the cache", "to bypass");

/// The same technique for shared memory.
pub(crate) static SHM: Technique =
    Technique { chosen_by: "swap", ..technique("shm", &["bypass", "all"], "past the cache", "to bypass") };

impl Technique {
    /// The name of the strategy that ours is compared with.
    pub const fn before(&self) -> &'static str {
        self.strategies[0]
    }

    /// The name of ours.
    pub const fn after(&self) -> &'static str {
        self.strategies[self.strategies.len() - 1]
    }

    /// The strategy of this name, and the default strategies of all other techniques.
    pub(crate) fn named(&self, strategy: &str) -> Option<Techniques> {
        let mut techniques = Techniques::default();
        techniques.set(self.chosen_by, strategy).ok().map(|()| techniques)
    }

    /// Each strategy with the default ones of all other techniques.
    pub(crate) fn each(&self) -> impl Iterator<Item = Techniques> {
        self.strategies.iter().filter_map(|strategy| self.named(strategy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_strategy_is_known_to_the_memory_manager_and_the_last_is_its_default() {
        for technique in [&PCP, &GATHER, &TABLES, &MREMAP, &SWAP, &SHM] {
            assert_eq!(technique.each().count(), technique.strategies.len(), "{}", technique.name);
            assert_eq!(technique.named(technique.after()), Some(Techniques::default()), "{}", technique.name);
        }
    }
}
