//! Trying other orders of calls that overlap, before a difference is counted.
//!
//! A call takes effect between its start and its end, and stands at one moment in between. Where the windows
//! of calls of two threads overlap, one of the two may have been first. Linux changes mappings under one
//! lock, so the windows of two calls that change them do not overlap; but a call that only looks at mappings,
//! such as the madvise that drops pages, overlaps with one that changes them. So if a call has another result
//! than Linux gave it, the replay asks in a space of the same mappings whether it would have that result in
//! another order: after the first events of other threads that stand later, or before the last changes of
//! other threads that stand earlier. The events of each thread keep their order. A touch that Linux refused
//! is such a result, too, of the moment at which it was refused.

use super::RunningReplay;
use super::candidates::{Around, Candidate, Course, Place, candidates};
use super::history::{Change, MOST_CHANGES};
use super::order::LOOKED_AT;
use crate::ahead::{LaterCall, Upcoming};
use crate::asked::Asked;
use crate::overlap::{Depends, changed_by, changes, meet};
use crate::trial::{Actor, Scene, Trial, Trials};
use quire_trace::event::{Call, EventKind, TaskId, Window};
use std::collections::HashSet;

/// Changes ahead that are looked at for these.
const MOST_LOOKED_AT: usize = 1 << 10;
/// Events ahead that a call is tried with.
const MOST_EVENTS: usize = 1 << 12;
/// A trial beside its mappings.
const TRIAL_COSTS: u64 = 32;

/// In which order a call has its recorded result.
pub(super) struct FoundOrder {
    /// Events that stand later and are made first, by their numbers.
    pub(super) first: Vec<u64>,
    /// It was before a change that stands earlier.
    pub(super) before: bool,
}

/// Another thread's event ahead.
struct LaterEvent {
    number: u64,
    task: TaskId,
    /// What can be asked again, and who asks.
    asked: Option<(Asked, Actor)>,
}

/// What a call is tried in.
struct Stage {
    asked: Asked,
    by: Actor,
    scene: Scene,
    /// In their order.
    steps: Vec<LaterEvent>,
    /// What each of them costs, and the call itself.
    work: Vec<u64>,
    own_work: u64,
}

impl RunningReplay<'_> {
    /// The order in which `asked` has its recorded result, where it has another one as it stands.
    pub(super) fn other_order(
        &mut self,
        task: TaskId,
        asked: Asked,
        window: Window,
        upcoming: &mut dyn Upcoming,
    ) -> Option<FoundOrder> {
        let Some(depends) = asked.depends_on() else {
            self.order.short |= asked.does_much();
            return None;
        };
        // Not even one trial may be made.
        if !self.order.affords(TRIAL_COSTS) {
            return None;
        }
        let (steps, later) = self.ahead(task, &depends, window, upcoming)?;
        let (earlier, fixed) = self.behind(task, &depends, window);
        let around = Around { later, earlier, fixed };
        if !self.order.spend(cost_of_listing(&around)) {
            return None;
        }
        let (all, more) = candidates(&around);
        self.order.short |= more;
        if all.is_empty() {
            return None;
        }
        let stage = self.stage(task, asked, &depends, steps, &around.earlier)?;
        // A trial with the same result in the order of the recording does not see what refuses the call.
        if self.tried(task, &stage, &Candidate::default()) != Some(false) {
            return None;
        }
        let found = all.iter().find(|candidate| self.tried(task, &stage, candidate) == Some(true))?;
        let first = stage.steps.iter().filter(|step| found.has(step.task, step.number));
        Some(FoundOrder { first: first.map(|step| step.number).collect(), before: !found.undone.is_empty() })
    }

    /// Events of other threads in the space of `task`, up to those that may have been before its call with
    /// this window, and by thread the numbers of the changes among them.
    fn ahead(
        &mut self,
        task: TaskId,
        depends: &Depends,
        window: Window,
        upcoming: &mut dyn Upcoming,
    ) -> Option<(Vec<LaterEvent>, Vec<Course<u64>>)> {
        let number = self.task(task)?.number;
        // A change that lies too far away may not be known.
        upcoming.changes();
        self.order.short |= upcoming.is_cut();
        let near = upcoming.changes().len();
        let looked_at = near.min(MOST_LOOKED_AT);
        let far = upcoming.far();
        if !self.order.spend((looked_at + far.len()) as u64 / LOOKED_AT) {
            return None;
        }
        let later = upcoming.changes().iter().take(looked_at).chain(&far);
        let mut overlapping = later.filter(|later| later.task != task && later.window.overlaps(&window));
        let nearest: Vec<LaterCall> = overlapping.by_ref().take(MOST_CHANGES).copied().collect();
        self.order.short |= near > looked_at || overlapping.next().is_some();
        let tasks: HashSet<TaskId> = nearest.iter().map(|later| later.task).collect();
        let next = self.event + 1;
        // The replay does not come to what lies beyond its end.
        let end = self.ends_at;
        self.order.short |= nearest.last().is_some_and(|last| last.number >= end);
        let seen = upcoming.end();
        let last = nearest.last().map_or(next, |last| last.number + 1).min(seen).min(end).max(next);
        if !self.order.spend((last - next) / LOOKED_AT) {
            return None;
        }
        // Those that are far away with their windows.
        let far = nearest.iter().map(|later| later.number).filter(|&number| (seen..end).contains(&number));
        let numbers =
            (next..last).chain(far.flat_map(|number| [number - 1, number]).filter(|&at| at >= last));
        let (mut steps, mut courses) = (Vec::new(), Vec::<Course<u64>>::new());
        let mut ended = HashSet::from([task]);
        let mut given = None;
        for at in numbers {
            let Some(event) = upcoming.get(at) else { break };
            let own = given.take().filter(|(of, _)| *of == event.task).map(|(_, window): (_, Window)| window);
            if let EventKind::Window(window) = &event.kind {
                given = Some((event.task, *window));
            }
            let is_here = || self.task(event.task).is_some_and(|other| other.number == number);
            // This change overlaps with none: what stands after it was after it, and so after this call.
            if own.is_none()
                && let EventKind::Call(call) = &event.kind
                && changes(call)
                && is_here()
            {
                break;
            }
            if !tasks.contains(&event.task)
                || ended.contains(&event.task)
                || self.order.advanced.contains(&at)
                || !is_here()
            {
                continue;
            }
            let own = own.filter(|own| own.overlaps(&window));
            let can_pass = match &event.kind {
                // Without a window that overlaps it was after this call, as was all that its thread did then.
                EventKind::Call(_) => own.is_some(),
                EventKind::Window(_) | EventKind::Fault(_) | EventKind::Reuse(_) => true,
                // What is lost is no thread's.
                EventKind::Compressibility(_) | EventKind::Contents(_) | EventKind::Lost(_) => continue,
                _ => false,
            };
            if !can_pass {
                ended.insert(event.task);
                continue;
            }
            if steps.len() == MOST_EVENTS {
                self.order.short = true;
                break;
            }
            let asked = Asked::of(event);
            if let (Some(call), Some(window)) = (asked.as_ref().and_then(Asked::change), own) {
                let place = Place { at, window, matters: matters(call, depends) };
                Course::of(&mut courses, event.task).places.push(place);
            }
            let by = self.actor(event.task)?;
            steps.push(LaterEvent { number: at, task: event.task, asked: asked.map(|asked| (asked, by)) });
        }
        Some((steps, courses))
    }

    /// By thread the places of the last changes that other threads made in the space of `task`, the last
    /// first, as far as a call of it with this window may have been before them. And the windows of the calls
    /// that it was after.
    fn behind(
        &mut self,
        task: TaskId,
        depends: &Depends,
        window: Window,
    ) -> (Vec<Course<usize>>, Vec<Window>) {
        let (mut courses, mut fixed) = (Vec::<Course<usize>>::new(), Vec::new());
        let Some(number) = self.task(task).map(|task| task.number) else { return (courses, fixed) };
        self.order.short |= self.order.history.lacks(number, task, window.start_ns);
        let mut ended = HashSet::from([task]);
        for (at, change) in self.order.history.made().iter().enumerate().rev() {
            if change.space != number || (change.looks() && change.task != task) {
                continue;
            }
            if !change.window.overlaps(&window) || change.followed_by.contains(&task) {
                ended.insert(change.task);
            }
            if ended.contains(&change.task) {
                fixed.push(change.window);
                continue;
            }
            let matters = change.asked.change().is_some_and(|call| matters(call, depends));
            let place = Place { at, window: change.window, matters };
            Course::of(&mut courses, change.task).places.push(place);
        }
        (courses, fixed)
    }

    /// What `asked` is tried in.
    fn stage(
        &mut self,
        task: TaskId,
        asked: Asked,
        depends: &Depends,
        steps: Vec<LaterEvent>,
        earlier: &[Course<usize>],
    ) -> Option<Stage> {
        let by = self.actor(task)?;
        let space = self.task(task)?.space.clone()?;
        if !self.order.spend(space.figures().mappings / LOOKED_AT) {
            return None;
        }
        let program_break = space.program_break().0;
        let mut ranges = vec![depends.range.clone(), depends.writes.clone()];
        for (asked, _) in steps.iter().filter_map(|step| step.asked.as_ref()) {
            if let Some(call) = asked.change() {
                ranges.extend(changed_by(call, program_break));
            }
            if let Some(depends) = asked.depends_on() {
                ranges.extend([depends.range, depends.writes]);
            }
        }
        // All that was changed since the first of them is put back with it.
        let places = earlier.iter().flat_map(|course| &course.places);
        if let Some(first) = places.map(|place| place.at).min() {
            let since = self.order.history.made().iter().skip(first);
            ranges.extend(since.flat_map(|change| change.ranges.clone()));
        }
        let committed = self.machine.memory().spaces().commit().promised();
        let cpu = self.schedule.cpu_of(task).unwrap_or(0);
        let scene = self.vcpus[cpu].run(|| Scene::of(&space, &ranges, committed));
        if !self.order.spend(steps.len() as u64 / LOOKED_AT) {
            return None;
        }
        let cost = |asked: &Asked| {
            let change = asked.change();
            let mapped = match (change, asked.depends_on()) {
                (Some(call), _) => {
                    changed_by(call, program_break).iter().map(|range| scene.meeting(range)).sum()
                }
                (None, depends) => depends.map_or(0, |depends| scene.meeting(&depends.range)),
            };
            // A call that is refused has mostly gone less far.
            let goes_far = change.is_some_and(|call| call.errno().is_none());
            1 + asked.work() + if goes_far { mapped } else { mapped / LOOKED_AT }
        };
        let work = steps.iter().map(|step| step.asked.as_ref().map_or(1, |(asked, _)| cost(asked))).collect();
        let own_work = cost(&asked);
        Some(Stage { asked, by, scene, steps, work, own_work })
    }

    /// Whether the call has its recorded result in this order; `None` if it is not tried.
    fn tried(&mut self, task: TaskId, stage: &Stage, candidate: &Candidate) -> Option<bool> {
        let made = self.order.history.made();
        let first = candidate.undone.iter().min().copied().unwrap_or(made.len());
        let space = candidate.undone.first().map(|&place| made[place].space);
        let is_since =
            |change: &Change| Some(change.space) == space && (!change.looks() || change.task == task);
        let since: Vec<usize> = (first..made.len()).filter(|&place| is_since(&made[place])).collect();
        let steps = || stage.steps.iter().zip(&stage.work);
        let steps = || steps().filter(|(step, _)| candidate.has(step.task, step.number));
        // What is put back is changed again.
        let of_change = |place: &usize| 2 + 2 * made[*place].before.len() as u64 + made[*place].asked.work();
        let costs = TRIAL_COSTS + stage.scene.mappings() + stage.own_work;
        let costs =
            costs + steps().map(|(_, work)| work).sum::<u64>() + since.iter().map(of_change).sum::<u64>();
        if !self.order.spend(costs) {
            return None;
        }
        let steps: Vec<&LaterEvent> = steps().map(|(step, _)| step).collect();
        let config = self.options.config;
        let order = &mut self.order;
        let trials = order.trials.get_or_insert_with(|| Trials::new(config)).as_ref();
        let made = order.history.made();
        let undone = |place: &usize| candidate.undone.contains(place);
        let again = |trial: &Trial<'_>, place: usize| trial.again(&made[place].asked, &made[place].by);
        let at = made.get(first).map_or(stage.scene.program_break(), |change| change.program_break);
        let tried = trials.and_then(|trials| {
            trials.run(&stage.scene, at, |trial| {
                since.iter().rev().all(|&place| trial.put_back(&made[place].ranges, &made[place].before))
                    && since.iter().filter(|place| !undone(place)).all(|&place| again(trial, place))
                    && steps
                        .iter()
                        .filter_map(|step| step.asked.as_ref())
                        .all(|(asked, by)| trial.again(asked, by))
                    && trial.agrees(&stage.asked, &stage.by)
                    && since.iter().filter(|place| undone(place)).all(|&place| again(trial, place))
            })
        });
        let Some((agrees, brought_in)) = tried else {
            // There is no machine for it, or too little memory.
            order.short = true;
            return None;
        };
        // It is done: what is left after it is what the next one may cost.
        order.costs = order.costs.saturating_sub(brought_in);
        Some(agrees)
    }
}

/// What it costs to list the orders among these changes: each is held against all of them.
fn cost_of_listing(around: &Around) -> u64 {
    /// Changes that are looked at for what a mapping in a trial costs.
    const LOOKED_AT: u64 = 4;
    let later = around.later.iter().map(|course| course.places.len()).sum::<usize>();
    let earlier = around.earlier.iter().map(|course| course.places.len()).sum::<usize>();
    let places = (later + earlier) as u64;
    places + places * (places + around.fixed.len() as u64) / LOOKED_AT
}

/// Whether a change can matter to what depends on this.
fn matters(change: &Call, depends: &Depends) -> bool {
    depends.on_limits || changed_by(change, 0).iter().any(|changed| meet(changed, &depends.range))
}
