//! The switch of the swap cache: technique C.

/// How much goes through the swap cache, and how.
///
/// The steps before the last do what Linux did at each of them: the device is asked for pages of zeros as for any other, and as
/// long as each page has a word, each page of a large folio is unmapped and counted by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum SwapTechnique {
    /// A word for each page; the cache is looked at early; a read that is done at once passes the cache by (before).
    Bypass,
    /// As before, but nothing passes the cache by.
    Cached,
    /// Also one word for all slots of a large folio, so that its pages are unmapped and counted together.
    Multi,
    /// Also: whoever inserts first reads, and there is no other race.
    Layer,
    /// Also: a fault looks at the cache once.
    Delayed,
    /// Also no list of tables that hold nothing but shadows; a page leaves the cache as it is mapped, what was one folio
    /// comes back as one, and of pages of zeros the word is all there is.
    #[default]
    All,
}

impl SwapTechnique {
    /// Every choice, from the one that does least to the one that does most.
    pub const ALL: [Self; 6] =
        [Self::Bypass, Self::Cached, Self::Multi, Self::Layer, Self::Delayed, Self::All];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bypass => "bypass",
            Self::Cached => "cached",
            Self::Multi => "multi",
            Self::Layer => "layer",
            Self::Delayed => "delayed",
            Self::All => "all",
        }
    }

    /// Whether a read that is done at once goes past the cache.
    #[inline]
    pub const fn bypasses(self) -> bool {
        matches!(self, Self::Bypass)
    }

    /// Whether one word speaks for all slots of a large folio. If not, every cluster in use has a table.
    #[inline]
    pub const fn whole_words(self) -> bool {
        self as u8 >= Self::Multi as u8
    }

    /// Whether the insertion decides who reads, so that who loses waits for the winner's folio.
    #[inline]
    pub const fn insertion_decides(self) -> bool {
        self as u8 >= Self::Layer as u8
    }

    /// Whether a fault looks at the cache once, instead of once before it has a folio and again after.
    #[inline]
    pub const fn single_lookup(self) -> bool {
        self as u8 >= Self::Delayed as u8
    }

    /// Whether it is noted that pages are all zeros, so that no device has to keep them.
    #[inline]
    pub const fn knows_zeros(self) -> bool {
        matches!(self, Self::All)
    }

    /// Whether a folio that everybody who names its slots maps leaves the cache in the same step, and comes in as large as it
    /// went out.
    #[inline]
    pub const fn leaves_when_mapped(self) -> bool {
        matches!(self, Self::All)
    }

    /// Whether tables that hold nothing but shadows are found when somebody looks for them, and not listed before.
    #[inline]
    pub const fn lazy_bookkeeping(self) -> bool {
        matches!(self, Self::All)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_technique_adds_one_thing() {
        let counts = SwapTechnique::ALL.map(|technique| {
            [
                !technique.bypasses(),
                technique.whole_words(),
                technique.insertion_decides(),
                technique.single_lookup(),
                technique.lazy_bookkeeping(),
            ]
            .into_iter()
            .filter(|&on| on)
            .count()
        });
        assert_eq!(counts, [0, 1, 2, 3, 4, 5]);
        assert_eq!(SwapTechnique::default(), SwapTechnique::All);
    }
}
