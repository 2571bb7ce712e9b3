//! The settings of the host in the header, and what they say of a recording.

use super::format::{header, settings, write_with};
use quire_trace::format::{FaultSource, HostSettings, TraceHeader, TraceReader};

/// A file without events that has this header.
fn headed(header: &TraceHeader) -> Vec<u8> {
    write_with(header, &[], 1)
}

#[test]
fn settings_of_the_host_are_read_again() {
    let none = HostSettings::default();
    for settings in
        [None, Some(none.clone()), Some(settings()), Some(HostSettings { thp_turned_off: true, ..none })]
    {
        let header = TraceHeader { settings, ..header() };
        assert_eq!(TraceReader::new(&headed(&header)[..]).unwrap().header(), &header);
    }
}

#[test]
fn only_recordings_that_show_each_page_support_predictions() {
    let refused = |settings: Option<HostSettings>, faults| {
        let header = TraceHeader { settings, faults, ..header() };
        header.supports_thp_predictions().err()
    };
    let on = |common: &str, size: &str| {
        let files =
            [("enabled", common), ("hugepages-64kB/enabled", size), ("hugepages-2048kB/enabled", "inherit")];
        let thp_files = files.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        Some(HostSettings { thp_turned_off: false, thp_files, ..settings() })
    };
    let source = FaultSource::Tracepoint;
    assert_eq!(refused(Some(settings()), source), None);
    assert_eq!(refused(on("never", "never"), source), None);
    assert_eq!(refused(on("never", "inherit"), source), None);
    for (common, size) in
        [("madvise", "never"), ("always", "never"), ("never", "madvise"), ("never", "always")]
    {
        let why = refused(on(common, size), source).unwrap();
        assert!(
            why.contains("recorded with transparent huge pages on") && why.contains("`quire record`"),
            "{why}"
        );
    }
    // Shared memory is not what these are about.
    let mut shared = on("never", "never").unwrap();
    shared.thp_files.extend(
        ["shmem_enabled", "hugepages-64kB/shmem_enabled"].map(|name| (name.to_owned(), "always".to_owned())),
    );
    assert_eq!(refused(Some(shared), source), None);
    let unknown = Some(HostSettings { thp_turned_off: false, ..HostSettings::default() });
    assert!(refused(unknown, source).unwrap().contains("unknown"));
    assert!(refused(None, source).unwrap().contains("earlier version"));
    assert!(refused(None, FaultSource::None).unwrap().contains("imported"));
}
