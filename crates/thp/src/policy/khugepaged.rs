//! The settings of the daemon that collapses page tables.

use core::fmt;
use core::ops::RangeInclusive;
use quire_arch::Order;

/// Declares the settings once: name, default and range of each.
macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $setting:ident = $name:literal, $default:expr, $range:expr;)+) => {
        /// A file of `/sys/kernel/mm/transparent_hugepage/khugepaged`, by its name there, that can be
        /// written. Defaults and ranges are Linux's.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(usize)]
        pub enum KhugepagedSetting {
            $($(#[doc = $doc])+ $setting,)+
        }

        impl KhugepagedSetting {
            /// Every setting, in the order of the enum.
            pub const ALL: &'static [Self] = &[$(Self::$setting,)+];

            /// Name of the file.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$setting => $name,)+
                }
            }

            /// Values that it can have.
            pub const fn range(self) -> RangeInclusive<u32> {
                match self {
                    $(Self::$setting => $range,)+
                }
            }
        }

        impl KhugepagedConfig {
            /// Linux's defaults.
            pub const LINUX: Self = Self([$($default,)+]);
        }
    };
}

/// Entries of a page table.
const ENTRIES: u32 = Order::PMD.pages() as u32;

settings! {
    /// Pages that it scans before it sleeps.
    PagesToScan = "pages_to_scan", 8 * ENTRIES, 1..=u32::MAX;
    /// How long it sleeps then, in milliseconds.
    ScanSleepMillisecs = "scan_sleep_millisecs", 10_000, 0..=u32::MAX;
    /// How long it sleeps when it could not allocate a large folio, in milliseconds.
    AllocSleepMillisecs = "alloc_sleep_millisecs", 60_000, 0..=u32::MAX;
    /// The most entries of a table that may be empty, or map the zero page, for it to be collapsed.
    MaxPtesNone = "max_ptes_none", ENTRIES - 1, 0..=ENTRIES - 1;
    /// The most entries that may be swapped out.
    MaxPtesSwap = "max_ptes_swap", ENTRIES / 8, 0..=ENTRIES - 1;
    /// The most entries that may map pages shared with other processes.
    MaxPtesShared = "max_ptes_shared", ENTRIES / 2, 0..=ENTRIES - 1;
    /// Whether it reclaims and compacts for a large folio itself: 1, or 0.
    Defrag = "defrag", 1, 0..=1;
}

/// Number of settings.
pub(super) const COUNT: usize = KhugepagedSetting::ALL.len();

/// A value that a setting cannot have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{} is {} to {}, not {value}", .setting.name(), .setting.range().start(), .setting.range().end())]
pub struct OutOfRange {
    /// The setting.
    pub setting: KhugepagedSetting,
    /// The value.
    pub value: u32,
}

/// A value for each setting.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KhugepagedConfig([u32; COUNT]);

impl KhugepagedConfig {
    /// With another value for `setting`.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`].
    #[inline]
    #[doc(hidden)]
    pub fn with(mut self, setting: KhugepagedSetting, value: u32) -> Result<Self, OutOfRange> {
        if !setting.range().contains(&value) {
            return Err(OutOfRange { setting, value });
        }
        self.0[setting as usize] = value;
        Ok(self)
    }

    /// The value of `setting`.
    #[doc(hidden)]
    #[inline]
    pub const fn get(self, setting: KhugepagedSetting) -> u32 {
        self.0[setting as usize]
    }
}

impl Default for KhugepagedConfig {
    fn default() -> Self {
        Self::LINUX
    }
}

impl fmt::Debug for KhugepagedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = KhugepagedSetting::ALL.iter().map(|&setting| (setting.name(), self.get(setting)));
        f.debug_map().entries(settings).finish()
    }
}
