//! The recordings that come with the project are sound and make sense.

use crate::common::Model;
use quire_trace::event::{Event, EventKind};
use quire_trace::format::{EXTENSION, TraceError, TraceReader};
use std::path::{Path, PathBuf};

fn recordings() -> Vec<PathBuf> {
    let folder = std::env::var_os("QUIRE_RECORDINGS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings"), PathBuf::from);
    let entries = std::fs::read_dir(folder).expect("the folder is part of the project");
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION)).collect()
}

#[test]
fn recordings_are_sound_and_make_sense() {
    let paths = recordings();
    assert!(paths.len() >= 6, "there are {} recordings", paths.len());
    let mut bytes = 0;
    for path in paths {
        bytes += path.metadata().map_or(0, |facts| facts.len());
        let mut reader = TraceReader::open(&path).unwrap_or_else(|error| panic!("{error}"));
        let events: Result<Vec<Event>, TraceError> = (&mut reader).collect();
        let events = events.unwrap_or_else(|error| panic!("{error}"));
        let trailer = reader.trailer().expect("a whole trace has one");
        assert_eq!(trailer.lost_samples, 0, "{}", path.display());
        let first = events.iter().find(|event| !matches!(event.kind, EventKind::File(_))).unwrap();
        assert!(matches!(first.kind, EventKind::Exec(_)), "{}", path.display());
        let model = Model::play(&events);
        eprintln!(
            "{}: {} placed, {} faults, {} denied, {} wrong",
            path.display(),
            model.placed,
            model.checked_faults,
            model.denied,
            model.wrong.len()
        );
        model.check();
    }
    assert!(bytes <= 3 << 20, "{bytes} bytes are too many");
}
