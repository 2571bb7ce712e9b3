//! The settings of huge pages that a recording was made under.

use super::image::huge_disable_of;
use crate::format::{HostSettings, TraceHeader};
use quire_mm::{
    HugeConfig, HugeDefrag, HugeDisable, HugeEnabled, HugePolicy, KhugepagedConfig, KhugepagedSetting,
    OrderSet, SizeEnabled,
};

/// The settings of huge pages that `/sys` had when the recording began, whatever the recorder turned off. A file
/// that the kernel did not have is as in the default. `None`: the recording does not say.
#[must_use]
pub fn recorded_huge_config(header: &TraceHeader) -> Option<HugeConfig> {
    let settings = header.settings.as_ref().filter(|settings| !settings.thp_files.is_empty())?;
    Some(HugeConfig { policy: policy(settings), khugepaged: khugepaged(settings) })
}

/// Whether a machine with this policy has the recorded settings. Of a recording that does not say what they were they
/// are taken to have been the default ones.
pub(super) fn are_recorded(header: &TraceHeader, policy: HugePolicy) -> bool {
    let turned_off = header.settings.as_ref().is_some_and(|settings| settings.thp_turned_off);
    !turned_off && recorded_huge_config(header).unwrap_or_default().policy == policy
}

/// What the first process had done with `PR_SET_THP_DISABLE` when it began.
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
        // What is out of range is no setting of this kernel's.
        value.and_then(|value| config.with(*setting, value).ok()).unwrap_or(config)
    })
}
