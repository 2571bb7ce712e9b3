//! Touches and calls, each in the order in which it has its recorded result.

use super::RunningReplay;
use super::history::Made;
use crate::ahead::Upcoming;
use crate::asked::Asked;
use crate::call::Verdict;
use quire_trace::event::{Call, Event, EventKind, Fault, TaskId, Window};

impl RunningReplay<'_> {
    /// Touches memory. A touch that Linux refused and that is allowed here is tried in other orders first.
    #[inline]
    pub(super) fn fault(&mut self, event: &Event, fault: &Fault, upcoming: &mut dyn Upcoming) {
        self.bring_around(event, fault, Some(&mut *upcoming));
        if let Some(found) = self.touched(event, fault) {
            self.differs(event, fault, found, upcoming);
        }
    }

    /// A touch has another result than Linux found, which was `found`.
    #[cold]
    fn differs(&mut self, event: &Event, fault: &Fault, found: String, upcoming: &mut dyn Upcoming) {
        // That of an earlier call says nothing of this touch.
        self.order.was_short();
        let asked = Asked::of(event);
        let order =
            asked.and_then(|asked| self.other_order(event.task, asked, Window::at(event.time_ns), upcoming));
        let Some(order) = order else {
            let untried = self.order.was_short();
            self.mismatch(event, fault, found);
            if let Some(process) = self.process_of(event.task).filter(|_| untried) {
                process.report.untried += 1;
            }
            return;
        };
        self.advance(event.task, &order.first, upcoming);
        if let Some(process) = self.process_of(event.task) {
            process.report.reordered += 1;
        }
        if !order.before && !self.is_over() {
            self.keep_refused(event, fault);
        }
    }

    /// Makes a call, in the order in which it has its recorded result, if there is one. `window`: it overlaps
    /// with others.
    pub(super) fn call(
        &mut self,
        event: &Event,
        call: &Call,
        window: Option<Window>,
        upcoming: &mut dyn Upcoming,
    ) {
        self.switch(event);
        // That of an earlier call says nothing of this one.
        self.order.was_short();
        // A call that Linux refused may not have an effect before it is known in which order it is refused.
        if let Some(window) = window.filter(|_| call.errno().is_some())
            && self.reorder(event, call, window, upcoming)
        {
            return;
        }
        let change = window.and_then(|window| self.change_before(event.task, call, window));
        if window.is_none() {
            self.call_alone(event.task, call);
        }
        let Some((process, verdict)) = self.verdict(event, call) else { return };
        if let (Verdict::Differs(_), Some(window), None) = (&verdict, window, call.errno())
            && self.reorder(event, call, window, upcoming)
        {
            return;
        }
        let differs = matches!(verdict, Verdict::Differs(_));
        self.judge(process, call, verdict);
        if self.order.was_short() && differs {
            self.processes[process].report.untried += 1;
        }
        // A wrong result says nothing of what comes after it.
        if let Some(change) = change.filter(|change| !differs || !change.looks()) {
            self.keep(change);
        }
    }

    /// Looks for another order in which `call` has its recorded result. Returns whether there is one.
    fn reorder(&mut self, event: &Event, call: &Call, window: Window, upcoming: &mut dyn Upcoming) -> bool {
        let asked = Asked::Call(call.clone());
        let Some(found) = self.other_order(event.task, asked, window, upcoming) else { return false };
        self.advance(event.task, &found.first, upcoming);
        if self.is_over() {
            return true;
        }
        self.switch(event);
        if found.before {
            if let Some(process) = self.process_of(event.task) {
                process.report.calls += 1;
            }
        } else {
            let change = self.change_before(event.task, call, window);
            if let Some((process, verdict)) = self.verdict(event, call) {
                self.judge(process, call, verdict);
            }
            if let Some(change) = change {
                self.keep(change);
            }
        }
        if let Some(process) = self.process_of(event.task) {
            process.report.reordered += 1;
        }
        true
    }

    /// Makes these events before their places: `task` makes a call after them.
    fn advance(&mut self, task: TaskId, numbers: &[u64], upcoming: &mut dyn Upcoming) {
        let here = self.event;
        for &number in numbers {
            if self.is_over() {
                break;
            }
            let Some(event) = upcoming.get(number).cloned() else { continue };
            self.order.advanced.insert(number);
            self.event = number;
            self.make_before_its_place(&event, task);
        }
        self.event = here;
    }

    /// `task` makes a call after this event.
    fn make_before_its_place(&mut self, event: &Event, task: TaskId) {
        match &event.kind {
            EventKind::Window(window) => self.order.note(event.task, *window),
            EventKind::Fault(fault) => self.fault_as_it_stands(event, fault),
            EventKind::Reuse(reuse) => self.reuse(event, reuse),
            EventKind::Call(call) => {
                self.switch(event);
                let window = self.order.window_of(event.task);
                let made = window.and_then(|window| self.change_before(event.task, call, window));
                if window.is_none() {
                    self.call_alone(event.task, call);
                }
                if let Some(mut made) = made {
                    if let Made::Known(change) = &mut made {
                        change.followed_by.push(task);
                    }
                    self.keep(made);
                }
                if let Some((process, verdict)) = self.verdict(event, call) {
                    self.judge(process, call, verdict);
                }
            }
            _ => {}
        }
    }
}
