//! What a scenario is.

use crate::common::*;
use crate::scene::Scene;
use std::ops::RangeInclusive;

/// A call and what its failures must look like.
#[derive(Clone)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Prepares the scene. Nothing fails yet.
    pub(crate) prepare: fn(&Scene<'_>),
    /// The call. It is made again after it failed, and must succeed then.
    pub(crate) attempt: fn(&Scene<'_>) -> Result<(), Error>,
    pub(crate) undone: Undone,
    /// Checks the error and whatever the driver does not know.
    pub(crate) refused: fn(&Scene<'_>, Error),
    /// Checks the result of a call that succeeded.
    pub(crate) succeeded: fn(&Scene<'_>),
    /// The call succeeds though it could not fault all its pages in, as Linux's does. Checks what it did.
    pub(crate) hides: Option<fn(&Scene<'_>)>,
    /// How many allocations the call makes in a machine whose caches are empty.
    pub(crate) allocations: RangeInclusive<u64>,
}

/// What a failed call leaves of the scene.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Undone {
    /// It is as before.
    All,
    /// Mappings may be split, tables and pages added; no contents are lost.
    Contents,
    /// What the scenario itself checks.
    AsChecked,
}

impl Scenario {
    /// A call that fails whole with ENOMEM, for want of the first allocation or a later one.
    pub(crate) const fn new(
        name: &'static str,
        prepare: fn(&Scene<'_>),
        attempt: fn(&Scene<'_>) -> Result<(), Error>,
    ) -> Self {
        Self {
            name,
            prepare,
            attempt,
            undone: Undone::All,
            refused: is_no_frames,
            succeeded: |_| (),
            hides: None,
            allocations: 1..=u64::MAX,
        }
    }

    pub(crate) const fn undone(self, undone: Undone) -> Self {
        Self { undone, ..self }
    }

    pub(crate) const fn refused(self, refused: fn(&Scene<'_>, Error)) -> Self {
        Self { refused, ..self }
    }

    pub(crate) const fn succeeded(self, succeeded: fn(&Scene<'_>)) -> Self {
        Self { succeeded, ..self }
    }

    pub(crate) const fn hides(self, hides: fn(&Scene<'_>)) -> Self {
        Self { hides: Some(hides), ..self }
    }

    pub(crate) const fn allocations(self, allocations: RangeInclusive<u64>) -> Self {
        Self { allocations, ..self }
    }

    /// The call allocates nothing, so it cannot fail.
    pub(crate) const fn never(self) -> Self {
        Self { refused: is_unexpected, allocations: 0..=0, ..self }
    }
}

/// ENOMEM, with its cause.
pub(crate) fn is_no_frames(_: &Scene<'_>, error: Error) {
    assert_eq!(error, Error::NoFrames(AllocError::Injected));
}

/// ENOMEM, and the filled range is as it was.
pub(crate) fn all_is_there(scene: &Scene<'_>, error: Error) {
    is_no_frames(scene, error);
    scene.assert_filled(0..16);
}

/// EAGAIN, with its cause.
pub(crate) fn is_try_again(_: &Scene<'_>, error: Error) {
    assert_eq!(error, Error::TryAgain(AllocError::Injected));
}

fn is_unexpected(_: &Scene<'_>, error: Error) {
    panic!("{error}");
}
