//! The controls of one machine.

use super::khugepaged::{COUNT, KhugepagedConfig, KhugepagedSetting, OutOfRange};
use super::switches::{HugeEffort, HugePolicy, HugeUse};
use core::fmt;
use quire_vma::VmFlags;
// Settings order nothing: a load may see the old value for a while. So no model has to see them.
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The initial settings of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct HugeConfig {
    /// The switches.
    pub policy: HugePolicy,
    /// The settings of khugepaged.
    pub khugepaged: KhugepagedConfig,
    /// Whether MADV_COLLAPSE and khugepaged make large folios of the pages of files that are not shared
    /// memory and that none has open for writing, so of programs and libraries (Linux's
    /// `CONFIG_READ_ONLY_THP_FOR_FS`). Not by default, as most kernels are built.
    pub read_only_files: bool,
}

/// The controls of large folios, of which a machine has one set. All can be changed at any time; each change
/// holds for the faults that begin after it.
pub struct HugeControls {
    policy: AtomicU64,
    /// A summary of the policy for most faults: whether any size is enabled in mappings without MADV_HUGEPAGE
    /// (bit 0), and with it (bit 1).
    any: AtomicU32,
    khugepaged: [AtomicU32; COUNT],
    read_only_files: AtomicBool,
}

impl HugeControls {
    /// Set as `config` says.
    #[doc(hidden)]
    #[inline]
    pub fn new(config: HugeConfig) -> Self {
        let value = |place| AtomicU32::new(config.khugepaged.get(KhugepagedSetting::ALL[place]));
        let controls = Self {
            policy: AtomicU64::new(config.policy.word()),
            any: AtomicU32::new(0),
            khugepaged: core::array::from_fn(value),
            read_only_files: AtomicBool::new(config.read_only_files),
        };
        controls.publish();
        controls
    }

    /// Sets everything. Changes that others make meanwhile may be lost.
    #[doc(hidden)]
    #[inline]
    pub fn set(&self, config: HugeConfig) {
        self.policy.store(config.policy.word(), Ordering::Relaxed);
        self.publish();
        for (place, &setting) in self.khugepaged.iter().zip(KhugepagedSetting::ALL) {
            place.store(config.khugepaged.get(setting), Ordering::Relaxed);
        }
        self.read_only_files.store(config.read_only_files, Ordering::Relaxed);
    }

    /// The switches at this moment.
    #[inline]
    pub fn policy(&self) -> HugePolicy {
        HugePolicy::from_word(self.policy.load(Ordering::Relaxed))
    }

    /// Changes some switches; no concurrent change is lost.
    #[inline]
    pub fn change(&self, change: impl Fn(HugePolicy) -> HugePolicy) {
        let changed = |word| Some(change(HugePolicy::from_word(word)).word());
        // Always `Ok`: the closure never gives up.
        let _ = self.policy.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
        self.publish();
    }

    /// Derives `any` from the policy; repeats if the policy changed meanwhile.
    fn publish(&self) {
        loop {
            let word = self.policy.load(Ordering::SeqCst);
            let on = |advised| u32::from(!HugePolicy::from_word(word).enabled_orders(advised).is_empty());
            self.any.store(on(false) | on(true) << 1, Ordering::SeqCst);
            if self.policy.load(Ordering::SeqCst) == word {
                return;
            }
        }
    }

    /// Whether a fault in a mapping with `flags` may use any size besides single pages.
    #[doc(hidden)]
    #[inline]
    pub fn any_size(&self, flags: VmFlags) -> bool {
        let bit = if flags.contains(VmFlags::HUGEPAGE) { 2 } else { 1 };
        self.any.load(Ordering::Relaxed) & bit != 0
    }

    /// The value of khugepaged's `setting`.
    #[doc(hidden)]
    #[inline]
    pub fn khugepaged(&self, setting: KhugepagedSetting) -> u32 {
        self.khugepaged[setting as usize].load(Ordering::Relaxed)
    }

    /// Sets khugepaged's `setting`.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`]; nothing is changed then.
    #[doc(hidden)]
    #[inline]
    pub fn set_khugepaged(&self, setting: KhugepagedSetting, value: u32) -> Result<(), OutOfRange> {
        let checked = KhugepagedConfig::LINUX.with(setting, value)?;
        self.khugepaged[setting as usize].store(checked.get(setting), Ordering::Relaxed);
        Ok(())
    }

    /// Whether files that none has open for writing get large folios ([`HugeConfig::read_only_files`]).
    #[doc(hidden)]
    #[inline]
    pub fn read_only_files(&self) -> bool {
        self.read_only_files.load(Ordering::Relaxed)
    }

    /// How hard `purpose` tries for a large folio in a mapping with `flags`.
    #[doc(hidden)]
    #[inline]
    pub fn effort(&self, purpose: HugeUse, flags: VmFlags) -> HugeEffort {
        match purpose {
            HugeUse::Fault => self.policy().fault_effort(flags),
            HugeUse::Khugepaged if self.khugepaged(KhugepagedSetting::Defrag) != 0 => HugeEffort::Insist,
            HugeUse::Collapse => HugeEffort::Insist,
            HugeUse::Khugepaged | HugeUse::Smaps => HugeEffort::Free,
        }
    }
}

impl fmt::Debug for HugeControls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HugeControls").field("policy", &self.policy()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::policy::{HugeDefrag, HugeEnabled};

    #[test]
    fn everything_can_be_set_at_once_or_one_by_one() {
        let controls = HugeControls::new(HugeConfig::default());
        let policy = HugePolicy::default().with_enabled(HugeEnabled::Never).with_zero_page(false);
        let mut khugepaged = KhugepagedConfig::LINUX;
        for (place, &setting) in KhugepagedSetting::ALL.iter().enumerate() {
            assert_eq!(setting as usize, place);
            assert_eq!(controls.khugepaged(setting), KhugepagedConfig::LINUX.get(setting));
            let value = if setting == KhugepagedSetting::Defrag { 0 } else { 100 + place as u32 };
            khugepaged = khugepaged.with(setting, value).expect("in range");
        }
        controls.set(HugeConfig { policy, khugepaged, read_only_files: true });
        assert!(controls.read_only_files());
        assert_eq!(controls.policy(), policy);
        for &setting in KhugepagedSetting::ALL {
            assert_eq!(controls.khugepaged(setting), khugepaged.get(setting));
            let (&least, &most) = (setting.range().start(), setting.range().end());
            let wrong = [least.checked_sub(1), most.checked_add(1)];
            for value in wrong.into_iter().flatten() {
                assert_eq!(controls.set_khugepaged(setting, value), Err(OutOfRange { setting, value }));
            }
            assert_eq!(controls.khugepaged(setting), khugepaged.get(setting));
            for value in [least, most] {
                assert_eq!(controls.set_khugepaged(setting, value), Ok(()));
                assert_eq!(controls.khugepaged(setting), value);
            }
        }
        controls.change(|policy| policy.with_defrag(HugeDefrag::Always));
        assert_eq!(controls.policy(), policy.with_defrag(HugeDefrag::Always));
    }

    #[test]
    fn each_purpose_has_its_own_effort() {
        let controls = HugeControls::new(HugeConfig::default());
        let effort = |purpose| controls.effort(purpose, VmFlags::empty());
        assert_eq!(effort(HugeUse::Fault), HugeEffort::Free);
        assert_eq!(effort(HugeUse::Khugepaged), HugeEffort::Insist);
        controls.set_khugepaged(KhugepagedSetting::Defrag, 0).expect("in range");
        assert_eq!(effort(HugeUse::Khugepaged), HugeEffort::Free);
        assert_eq!(effort(HugeUse::Collapse), HugeEffort::Insist);
        assert_eq!(controls.effort(HugeUse::Fault, VmFlags::HUGEPAGE), HugeEffort::Insist);
    }
}
