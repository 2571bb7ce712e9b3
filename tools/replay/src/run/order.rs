//! What is known of calls whose order is not: their windows, what was changed lately, and what may still be
//! spent on them.

use super::RunningReplay;
use super::history::{Change, History, Made};
use crate::asked::Asked;
use crate::overlap::{changed_by, changes};
use crate::plan::Claims;
use crate::touch;
use crate::trial::{self, Actor, Trials};
use quire_trace::event::{Call, Event, Fault, TaskId, Window};
use std::collections::HashSet;

/// Mappings that are kept of a change.
const MOST_MAPPINGS: usize = 1 << 10;

/// What trials may cost at first, in mappings that they get: some seconds.
const FIRST_COSTS: u64 = 1 << 22;
/// And what each event adds.
const COSTS_OF_EVENT: u64 = 4;
/// Mappings or events that are looked at for what a mapping in a trial costs.
pub(super) const LOOKED_AT: u64 = 16;

/// What is known of calls whose order is not.
pub(super) struct CallOrders {
    /// The window that the event before gave to this thread's next event.
    window: Option<(TaskId, Window)>,
    pub(super) history: History,
    /// Numbers of events that were made before their place.
    pub(super) advanced: HashSet<u64>,
    /// Events that came, and of how many what they add is part of the following.
    events: u64,
    earned: u64,
    /// What trials may still cost.
    pub(super) costs: u64,
    /// Something was not tried because it costs too much, or lies too far away.
    pub(super) short: bool,
    /// Their machine, once one was needed; `None` in it if there is none.
    pub(super) trials: Option<Option<Trials>>,
}

impl CallOrders {
    /// Nothing is known yet.
    pub(super) fn new(claims: Claims) -> Self {
        Self {
            window: None,
            history: History::default(),
            advanced: HashSet::new(),
            events: 0,
            earned: 0,
            costs: claims.of(FIRST_COSTS),
            short: false,
            trials: None,
        }
    }

    /// The next event is a call of `task` with this window.
    pub(super) fn note(&mut self, task: TaskId, window: Window) {
        self.window = Some((task, window));
    }

    /// The window that the event before gave to an event of `task`. No later event has it.
    #[inline]
    pub(super) fn window_of(&mut self, task: TaskId) -> Option<Window> {
        self.events += 1;
        // Most have none.
        self.window?;
        self.window.take().filter(|(of, _)| *of == task).map(|(_, window)| window)
    }

    /// Whether the event of this number was made before.
    pub(super) fn was_made(&mut self, number: u64) -> bool {
        !self.advanced.is_empty() && self.advanced.remove(&number)
    }

    /// Whether so much may be spent. It is.
    pub(super) fn spend(&mut self, costs: u64) -> bool {
        self.earn();
        let left = self.costs.checked_sub(costs);
        self.costs = left.unwrap_or(0);
        self.short |= left.is_none();
        left.is_some()
    }

    /// Adds what the events add that came since.
    fn earn(&mut self) {
        let new = self.events - std::mem::replace(&mut self.earned, self.events);
        self.costs = self.costs.saturating_add(new.saturating_mul(COSTS_OF_EVENT));
    }

    /// Whether so much may be spent.
    pub(super) fn affords(&mut self, costs: u64) -> bool {
        self.earn();
        self.short |= self.costs < costs;
        self.costs >= costs
    }

    /// Whether something was not tried since the last call of this because it costs too much, or lies too far
    /// away.
    pub(super) fn was_short(&mut self) -> bool {
        std::mem::take(&mut self.short)
    }
}

impl RunningReplay<'_> {
    pub(super) fn actor(&self, task: TaskId) -> Option<Actor> {
        let task = self.task(task)?;
        Some(Actor { limits: self.processes[task.process].limits, rights: task.rights })
    }

    /// What is mapped where `call`, which overlaps with others, is about to change it. A call that only looks
    /// is remembered where a later one of its thread may be tried before the changes that it found.
    pub(super) fn change_before(&mut self, task: TaskId, call: &Call, window: Window) -> Option<Made> {
        if !changes(call) {
            return self.looked(task, Asked::Call(call.clone()), window);
        }
        let state = self.task(task)?;
        let (number, space) = (state.number, state.space.clone()?);
        let program_break = space.program_break().0;
        let ranges = changed_by(call, program_break);
        let known = self.order.spend(1 + space.figures().mappings / LOOKED_AT);
        let before = if known { trial::mappings_in(&space, &ranges) } else { Vec::new() };
        if !known || before.len() > MOST_MAPPINGS {
            // What was changed before it cannot be put back any more.
            return Some(Made::Unknown(number, task, window));
        }
        let by = self.actor(task)?;
        let (asked, followed_by) = (Asked::Call(call.clone()), Vec::new());
        let change =
            Change { task, space: number, window, asked, by, ranges, before, program_break, followed_by };
        Some(Made::Known(Box::new(change)))
    }

    /// What was asked in this window and has changed nothing, if it is to be remembered.
    fn looked(&self, task: TaskId, asked: Asked, window: Window) -> Option<Made> {
        asked.depends_on()?;
        let state = self.task(task)?;
        if !self.order.history.overlaps(state.number, task, &window) {
            return None;
        }
        let (space, program_break) = (state.number, state.space.as_ref()?.program_break().0);
        let by = self.actor(task)?;
        let (ranges, before, followed_by) = (Vec::new(), Vec::new(), Vec::new());
        let change = Change { task, space, window, asked, by, ranges, before, program_break, followed_by };
        Some(Made::Known(Box::new(change)))
    }

    /// Keeps a touch that was refused, as Linux refused it.
    pub(super) fn keep_refused(&mut self, event: &Event, fault: &Fault) {
        if touch::is_refused(fault)
            && let Some(made) = self.looked(event.task, Asked::Touch(*fault), Window::at(event.time_ns))
        {
            self.keep(made);
        }
    }

    /// A call of `task` that overlaps with none is about to be made.
    pub(super) fn call_alone(&mut self, task: TaskId, call: &Call) {
        if changes(call)
            && let Some(number) = self.task(task).map(|task| task.number)
        {
            self.order.history.fix(number);
        }
    }

    /// Keeps a call that was made.
    pub(super) fn keep(&mut self, made: Made) {
        self.order.history.keep(made);
    }
}
