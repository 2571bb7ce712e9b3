//! What a program asked and what it got: a call, or a touch that Linux refused. Where another order is tried,
//! it is asked again.

use super::overlap::{self, Depends};
use super::touch;
use quire_trace::event::{Call, Event, EventKind, Fault};

/// What can be asked again.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    Call(Call),
    /// A touch that was refused because of the mappings.
    Touch(Fault),
}

impl Asked {
    /// What this event asked, if it can be asked again and something depends on it.
    pub(super) fn of(event: &Event) -> Option<Self> {
        match &event.kind {
            EventKind::Call(call) => {
                let matters = overlap::changes(call) || overlap::depends_on(call).is_some();
                matters.then(|| Self::Call(call.clone()))
            }
            EventKind::Fault(fault) => touch::is_refused(fault).then_some(Self::Touch(*fault)),
            _ => None,
        }
    }

    /// The call, if it can have changed mappings.
    pub(super) fn change(&self) -> Option<&Call> {
        match self {
            Self::Call(call) => Some(call).filter(|call| overlap::changes(call)),
            Self::Touch(_) => None,
        }
    }

    /// What the result depends on, if it is known.
    pub(super) fn depends_on(&self) -> Option<Depends> {
        match self {
            Self::Call(call) => overlap::depends_on(call),
            Self::Touch(fault) => Some(overlap::touch_depends_on(fault)),
        }
    }

    /// Whether it is not tried because of what it would do.
    pub(super) fn does_much(&self) -> bool {
        matches!(self, Self::Call(call) if overlap::does_much(call))
    }

    /// What it costs beside mappings that it looks at or changes.
    pub(super) fn work(&self) -> u64 {
        match self {
            Self::Call(call) => overlap::work_of(call),
            // A touch that is allowed in another order brings in a page and its tables.
            Self::Touch(_) => 4,
        }
    }
}
