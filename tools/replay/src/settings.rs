//! The settings of huge pages during a recording.

use super::image::huge_disable_of;
use quire_host::HostPlatform;
use quire_mm::Memory;
use quire_mm::file::{ShmemEnabled, ShmemHuge, ShmemSizeEnabled};
use quire_mm::proc::HugeFile;
use quire_mm::thp::{
    HugeConfig, HugeDefrag, HugeDisable, HugeEnabled, HugePolicy, KhugepagedConfig, KhugepagedSetting,
    OrderSet, SizeEnabled,
};
use quire_trace::format::{HostSettings, TraceHeader};

/// The settings of huge pages that `/sys` had when the recording began, regardless of what the recorder
/// turned off. A file that the kernel did not have counts as the default. `None`: the recording does not
/// have them.
#[must_use]
pub fn recorded_huge_config(header: &TraceHeader) -> Option<HugeConfig> {
    let settings = header.settings.as_ref().filter(|settings| !settings.thp_files.is_empty())?;
    Some(HugeConfig { policy: policy(settings), khugepaged: khugepaged(settings), ..HugeConfig::default() })
}

/// Which folios of shared memory could be large by `/sys` when the recording began, regardless of what the
/// recorder turned off. `None`: the recording does not have it, as those before version 13 of the format.
#[must_use]
pub fn recorded_shmem_huge(header: &TraceHeader) -> Option<ShmemHuge> {
    let settings = header.settings.as_ref()?;
    let enabled = chosen(settings, "shmem_enabled", ShmemEnabled::ALL, ShmemEnabled::name)?;
    let mut huge = ShmemHuge::NEVER;
    for order in OrderSet::SHMEM.iter() {
        let file = HugeFile::ShmemSize(order).to_string();
        if let Some(word) = chosen(settings, &file, ShmemSizeEnabled::ALL, ShmemSizeEnabled::name) {
            huge = huge.with_size(order, word).unwrap_or(huge);
        }
    }
    // No kernel has what is refused here.
    Some(huge.with_enabled(enabled).unwrap_or(huge))
}

/// The same as the programs had it, which was never where the recorder turned huge pages off.
pub(super) fn shmem_huge_of_programs(header: &TraceHeader) -> ShmemHuge {
    let turned_off = header.settings.as_ref().is_some_and(|settings| settings.thp_turned_off);
    recorded_shmem_huge(header).filter(|_| !turned_off).unwrap_or_default()
}

/// Whether a machine that is set so may have shared memory in other places than the recorded host, which was
/// set otherwise.
pub(super) fn has_other_places(header: &TraceHeader, ours: ShmemHuge) -> bool {
    recorded_shmem_huge(header).unwrap_or_default() != ours
}

/// Sets a new machine so.
pub(super) fn apply_shmem_huge(memory: &Memory<HostPlatform>, huge: ShmemHuge) {
    let sizes = OrderSet::SHMEM.iter().map(|order| (HugeFile::ShmemSize(order), huge.size(order).name()));
    // The sizes first: only without others can the PMD's inherit `force`.
    for (file, word) in sizes.chain([(HugeFile::ShmemEnabled, huge.enabled().name())]) {
        let written = file.write(memory, word);
        debug_assert!(written.is_ok(), "{file}={word}: {written:?}");
    }
}

/// Whether a machine with this policy has the recorded settings. If the recording does not have them, the
/// default ones are assumed.
pub(super) fn are_recorded(header: &TraceHeader, policy: HugePolicy) -> bool {
    let turned_off = header.settings.as_ref().is_some_and(|settings| settings.thp_turned_off);
    !turned_off && recorded_huge_config(header).unwrap_or_default().policy == policy
}

/// The `PR_SET_THP_DISABLE` setting of the first process at its start.
pub(super) fn first_huge_disable(header: &TraceHeader) -> HugeDisable {
    header.settings.as_ref().map_or(HugeDisable::No, |settings| huge_disable_of(settings.thp_disable))
}

/// The choice that a file names.
fn chosen<T: Copy>(
    settings: &HostSettings,
    file: &str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
) -> Option<T> {
    let word = settings.thp_file(file)?;
    all.iter().copied().find(|choice| name(*choice) == word)
}

fn policy(settings: &HostSettings) -> HugePolicy {
    let mut policy = HugePolicy::default();
    if let Some(word) = chosen(settings, "enabled", HugeEnabled::ALL, HugeEnabled::name) {
        policy = policy.with_enabled(word);
    }
    if let Some(word) = chosen(settings, "defrag", HugeDefrag::ALL, HugeDefrag::name) {
        policy = policy.with_defrag(word);
    }
    if let Some(text) = settings.thp_file("use_zero_page") {
        policy = policy.with_zero_page(text != "0");
    }
    if let Some(text) = settings.thp_file("shrink_underused") {
        policy = policy.with_shrink_underused(text != "0");
    }
    for order in OrderSet::ANONYMOUS.iter() {
        let file = format!("hugepages-{}kB/enabled", order.pages() * 4);
        if let Some(word) = chosen(settings, &file, SizeEnabled::ALL, SizeEnabled::name) {
            policy = policy.with_sizes(OrderSet::of(order), word);
        }
    }
    policy
}

fn khugepaged(settings: &HostSettings) -> KhugepagedConfig {
    KhugepagedSetting::ALL.iter().fold(KhugepagedConfig::LINUX, |config, setting| {
        let file = format!("khugepaged/{}", setting.name());
        let value = settings.thp_file(&file).and_then(|text| text.parse().ok());
        // A value out of range is no setting of this kernel.
        value.and_then(|value| config.with(*setting, value).ok()).unwrap_or(config)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_arch::Order;
    use quire_trace::event::ThpDisable;
    use quire_trace::format::FaultSource;

    fn header(files: &[(&str, &str)], thp_turned_off: bool) -> TraceHeader {
        TraceHeader {
            faults: FaultSource::Tracepoint,
            settings: Some(HostSettings {
                thp_turned_off,
                thp_disable: ThpDisable::ExceptAdvised,
                thp_files: files
                    .iter()
                    .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
                    .collect(),
                ..HostSettings::default()
            }),
            ..TraceHeader::default()
        }
    }

    #[test]
    fn each_file_is_a_setting() {
        let files = [
            ("enabled", "always"),
            ("defrag", "defer+madvise"),
            ("use_zero_page", "0"),
            ("shrink_underused", "0"),
            ("hugepages-64kB/enabled", "always"),
            ("hugepages-2048kB/enabled", "never"),
            ("khugepaged/max_ptes_none", "0"),
            ("khugepaged/pages_to_scan", "77"),
            // Not a value of this kernel.
            ("hugepages-32kB/enabled", "perhaps"),
            ("khugepaged/max_ptes_swap", "100000"),
        ];
        let HugeConfig { policy, khugepaged, .. } = recorded_huge_config(&header(&files, true)).unwrap();
        assert_eq!((policy.enabled(), policy.defrag()), (HugeEnabled::Always, HugeDefrag::DeferMadvise));
        assert!(!policy.zero_page() && !policy.shrink_underused());
        let word = |order| policy.size(Order::new(order).unwrap());
        assert_eq!([3, 4, 9].map(word), [SizeEnabled::Never, SizeEnabled::Always, SizeEnabled::Never]);
        let expected = KhugepagedConfig::LINUX.with(KhugepagedSetting::MaxPtesNone, 0);
        let expected = expected.and_then(|config| config.with(KhugepagedSetting::PagesToScan, 77));
        assert_eq!(khugepaged, expected.unwrap());
    }

    #[test]
    fn shared_memory_has_settings_of_its_own() {
        let files = [
            ("enabled", "never"),
            ("hugepages-64kB/shmem_enabled", "advise"),
            ("hugepages-2048kB/shmem_enabled", "inherit"),
            ("shmem_enabled", "within_size"),
            ("hugepages-32kB/shmem_enabled", "perhaps"),
        ];
        let huge = recorded_shmem_huge(&header(&files, true)).unwrap();
        assert_eq!(huge.enabled(), ShmemEnabled::WithinSize);
        let word = |order| huge.size(Order::new(order).unwrap());
        use ShmemSizeEnabled as Size;
        assert_eq!([3, 4, 9].map(word), [Size::Never, Size::Advise, Size::Inherit]);
        // As the programs had it.
        assert_eq!(shmem_huge_of_programs(&header(&files, true)), ShmemHuge::NEVER);
        assert_eq!(shmem_huge_of_programs(&header(&files, false)), huge);
        assert_eq!(recorded_shmem_huge(&header(&files[..1], false)), None, "an old recording");
        // What no kernel allows is not there in part.
        let forced = [("hugepages-64kB/shmem_enabled", "inherit"), ("shmem_enabled", "force")];
        assert_eq!(recorded_shmem_huge(&header(&forced, false)).unwrap().enabled(), ShmemEnabled::Never);
    }

    #[test]
    fn results_are_compared_under_the_recorded_settings_only() {
        let (always, default) = ([("enabled", "always")], HugePolicy::default());
        let same = |header: &TraceHeader, policy| are_recorded(header, policy);
        assert!(same(&header(&always, false), default.with_enabled(HugeEnabled::Always)));
        assert!(!same(&header(&always, false), default));
        assert!(!same(&header(&always, true), default.with_enabled(HugeEnabled::Always)), "they were off");
        let old = TraceHeader { settings: None, ..header(&[], false) };
        assert_eq!(recorded_huge_config(&old), None);
        assert!(same(&old, default) && !same(&old, default.with_enabled(HugeEnabled::Never)));
        assert_eq!(first_huge_disable(&old), HugeDisable::No);
        assert_eq!(first_huge_disable(&header(&always, false)), HugeDisable::ExceptAdvised);
    }
}
