//! From a history to the steps of each page, and what must hold between the pages of one call.

use super::super::Side;
use super::super::history::{Event, Outcome, Refusal};
use super::super::program::{MAX_PAGES, MAX_THREADS, Op, Rights, Span, Word};
use super::page::{Effect, Label, Labels, Load, Roles, Value};
use super::search::{ALWAYS, PageStep, PageSteps};
use std::collections::HashSet;

const ENOMEM: i64 = 12;
const EFAULT: i64 = 14;
const EINVAL: i64 = 22;

/// What a call's result says about its pages.
#[derive(Debug)]
pub(super) enum Rule {
    /// One of the patterns fits: each gives a set of roles to every slot, in their order.
    Patterns { event: usize, slots: Vec<usize>, patterns: Vec<Vec<Roles>> },
    /// What leaves by the first slot comes by the second, and where nothing leaves nothing comes.
    Carry { event: usize, source: usize, target: usize },
}

impl Rule {
    pub(super) fn event(&self) -> usize {
        match *self {
            Self::Patterns { event, .. } | Self::Carry { event, .. } => event,
        }
    }
}

/// A history, page by page.
#[derive(Debug)]
pub(super) struct Histories {
    pub(super) pages: Vec<PageSteps>,
    /// Labels that are possible so far, by slot.
    pub(super) slots: Vec<Labels>,
    /// The page that each slot is a step of.
    pub(super) page_of: Vec<u8>,
    pub(super) rules: Vec<Rule>,
}

/// Places of role `at` behind `before` and in front of `after`: a call that ends at the first page where it
/// cannot go on.
fn first_of(count: usize, before: Roles, at: Roles, after: Roles) -> Vec<Vec<Roles>> {
    let role = |place: usize, page: usize| match page {
        _ if page < place => before,
        _ if page == place => at,
        _ => after,
    };
    (0..count).map(|place| (0..count).map(|page| role(place, page)).collect()).collect()
}

impl Histories {
    /// Fails with an event whose outcome is impossible, whatever the other threads did.
    pub(super) fn of(events: &[Event], side: Side) -> Result<Self, usize> {
        let mut histories = Self {
            pages: (0..MAX_PAGES).map(|_| PageSteps::default()).collect(),
            slots: vec![Labels::DONE],
            page_of: vec![0],
            rules: Vec::new(),
        };
        for number in 0..events.len() {
            histories.add(events, number, side).ok_or(number)?;
        }
        Ok(histories)
    }

    /// `None`: its outcome is impossible.
    fn add(&mut self, events: &[Event], number: usize, side: Side) -> Option<()> {
        let event = &events[number];
        debug_assert!(usize::from(event.thread) < MAX_THREADS, "{event}");
        let mut on = On { histories: self, event, number, side };
        match (event.op, &event.outcome) {
            (Op::Read { page }, Outcome::Word(word)) if !matches!(word, Word::Foreign(_)) => {
                on.step(page, Effect::Read(Ok(*word)));
            }
            (Op::Read { page }, Outcome::Refused(refusal)) => on.step(page, Effect::Read(Err(*refusal))),
            (Op::Write { page, value }, outcome) => on.step(page, Effect::Write(value, access(outcome)?)),
            (Op::Map { span, rights, .. }, Outcome::Done) => on.steps(span, &[Effect::Map(rights)]),
            (Op::Unmap { span }, Outcome::Done) => on.steps(span, &[Effect::BeginUnmap, Effect::EndUnmap]),
            (Op::Protect { span, rights }, outcome) => on.change(span, Effect::Protect(rights), outcome)?,
            (Op::Unlock { span }, outcome) => on.change(span, on.set_locked(false), outcome)?,
            (Op::Lock { span }, outcome) => on.lock(span, outcome)?,
            (Op::Drop { span }, outcome) => on.drop_pages(span, outcome)?,
            (Op::Populate { span, write }, outcome) => {
                on.populate(span, Effect::Populate { write }, outcome)?;
            }
            (Op::Move { from, to }, outcome) if from.overlaps(Op::target(from, to)) => {
                (*outcome == Outcome::Failed(EINVAL)).then_some(())?;
            }
            (Op::Move { from, .. }, Outcome::Failed(EFAULT)) => {
                // Nothing begins before the first page, and the call looks for that before it unmaps the
                // target.
                on.slot(from.first, Effect::Depart, Labels::only(Roles::HOLE));
            }
            (Op::Move { from, to }, Outcome::Done) => on.carry(events, from, to),
            (Op::Fork, Outcome::Child(pages)) => {
                for (page, &child) in (0..).zip(pages) {
                    on.step(page, Effect::Fork(child));
                }
            }
            _ => return None,
        }
        Some(())
    }
}

fn access(outcome: &Outcome) -> Option<Result<(), Refusal>> {
    match outcome {
        Outcome::Done => Some(Ok(())),
        Outcome::Refused(refusal) => Some(Err(*refusal)),
        _ => None,
    }
}

/// One event, on its way into the histories.
struct On<'h> {
    histories: &'h mut Histories,
    event: &'h Event,
    number: usize,
    side: Side,
}

impl On<'_> {
    fn put(&mut self, page: u8, effect: Effect, slot: usize) {
        let Event { thread, begin, end, .. } = *self.event;
        let step = PageStep { event: self.number, begin, end, effect, slot };
        self.histories.pages[usize::from(page)][usize::from(thread)].push(step);
    }

    /// A step that does its work.
    fn step(&mut self, page: u8, effect: Effect) {
        self.put(page, effect, ALWAYS);
    }

    /// The same on each page.
    fn steps(&mut self, span: Span, effects: &[Effect]) {
        for page in span.pages() {
            effects.iter().for_each(|&effect| self.step(page, effect));
        }
    }

    /// A step that may have any of `labels`.
    fn slot(&mut self, page: u8, effect: Effect, labels: Labels) -> usize {
        let slot = self.histories.slots.len();
        self.histories.slots.push(labels);
        self.histories.page_of.push(page);
        self.put(page, effect, slot);
        slot
    }

    /// What `mlock` and `munlock` begin with.
    fn set_locked(&self, locked: bool) -> Effect {
        Effect::SetLocked { locked, waits: self.side == Side::Quire }
    }

    /// Steps of which only the patterns, which must follow, say what they did. `then` follows on each page.
    fn open(&mut self, span: Span, effect: Effect, then: &[Effect]) -> Vec<usize> {
        let pages = span.pages().map(|page| {
            let slot = self.slot(page, effect, Labels::only(Roles::NOTHING));
            then.iter().for_each(|&effect| self.step(page, effect));
            slot
        });
        pages.collect()
    }

    fn patterns(&mut self, slots: Vec<usize>, patterns: Vec<Vec<Roles>>) {
        for pattern in &patterns {
            for (&slot, roles) in slots.iter().zip(pattern) {
                let labels = &mut self.histories.slots[slot];
                labels.roles = labels.roles.or(*roles);
            }
        }
        self.histories.rules.push(Rule::Patterns { event: self.number, slots, patterns });
    }

    /// `mprotect` and `munlock`: mapping by mapping, up to the first hole. What came before it stays changed.
    fn change(&mut self, span: Span, effect: Effect, outcome: &Outcome) -> Option<()> {
        match outcome {
            Outcome::Done => self.steps(span, &[effect]),
            Outcome::Failed(ENOMEM) => {
                let slots = self.open(span, effect, &[]);
                let patterns = first_of(slots.len(), Roles::DONE, Roles::HOLE, Roles::UNTOUCHED);
                self.patterns(slots, patterns);
            }
            _ => return None,
        }
        Some(())
    }

    /// `mlock`: changes the pages as `mprotect` does, and then the pages are faulted in, which fails at the
    /// first that allows nothing.
    fn lock(&mut self, span: Span, outcome: &Outcome) -> Option<()> {
        match outcome {
            Outcome::Done => self.steps(span, &[self.set_locked(true), Effect::FaultIn]),
            Outcome::Failed(ENOMEM) => {
                let mut slots = Vec::new();
                let mut later = Vec::new();
                for page in span.pages() {
                    let one = Span { first: page, count: 1 };
                    slots.extend(self.open(one, self.set_locked(true), &[]));
                    later.extend(self.open(one, Effect::FaultIn, &[]));
                }
                let count = slots.len();
                let locking = first_of(count, Roles::DONE, Roles::HOLE, Roles::UNTOUCHED);
                let faulting = first_of(count, Roles::DONE, Roles::REFUSED, Roles::UNTOUCHED);
                let locked = locking.into_iter().map(|first| [first, vec![Roles::UNTOUCHED; count]].concat());
                let faulted = faulting.into_iter().map(|second| [vec![Roles::DONE; count], second].concat());
                let patterns = locked.chain(faulted).collect();
                slots.extend(later);
                self.patterns(slots, patterns);
            }
            _ => return None,
        }
        Some(())
    }

    /// DONTNEED passes over holes, which it reports at its end, and stops at locked memory.
    fn drop_pages(&mut self, span: Span, outcome: &Outcome) -> Option<()> {
        let passed = Roles::DONE.or(Roles::HOLE);
        let patterns: fn(usize, Roles) -> Vec<Vec<Roles>> = match outcome {
            Outcome::Done => {
                self.steps(span, &[Effect::BeginDrop, Effect::EndDrop]);
                return Some(());
            }
            Outcome::Failed(ENOMEM) => |count, passed| first_of(count, Roles::DONE, Roles::HOLE, passed),
            Outcome::Failed(EINVAL) => {
                |count, passed| first_of(count, passed, Roles::REFUSED, Roles::UNTOUCHED)
            }
            _ => return None,
        };
        let slots = self.open(span, Effect::BeginDrop, &[Effect::EndDrop]);
        let patterns = patterns(slots.len(), passed);
        self.patterns(slots, patterns);
        Some(())
    }

    /// POPULATE goes page by page, up to the first that it cannot have.
    fn populate(&mut self, span: Span, effect: Effect, outcome: &Outcome) -> Option<()> {
        let obstacle = match outcome {
            Outcome::Done => {
                self.steps(span, &[effect]);
                return Some(());
            }
            Outcome::Failed(ENOMEM) => Roles::HOLE,
            Outcome::Failed(EINVAL) => Roles::REFUSED,
            _ => return None,
        };
        let slots = self.open(span, effect, &[]);
        let patterns = first_of(slots.len(), Roles::DONE, obstacle, Roles::UNTOUCHED);
        self.patterns(slots, patterns);
        Some(())
    }

    /// A move that succeeded: each page of the source that is mapped goes to its place, from the first one
    /// on. Where there are gaps the target stays as it is.
    fn carry(&mut self, events: &[Event], from: Span, to: u8) {
        let loads = Rights::ALL
            .into_iter()
            .flat_map(|rights| [false, true].map(|locked| Load { rights, locked, value: Value::Open }));
        let loads: Vec<Load> = loads.collect();
        for (source, target) in from.pages().zip(to..) {
            // With accesses to one end only, the move is as good as a single instant: before the accesses to
            // the target, or after those to the source.
            let accessed = |page| {
                let met = |event: &Event| event.op.accessed() == Some(page) && event.overlaps(self.event);
                events.iter().any(met)
            };
            let gradual = accessed(source) && accessed(target);
            let first = source == from.first;
            let or = |roles: Roles| if first { Roles::MOVED } else { Roles::MOVED.or(roles) };
            let leaves = Labels::only(or(Roles::HOLE));
            let comes = Labels { roles: or(Roles::UNTOUCHED), loads: Some(loads.clone()) };
            let (source, target) = if gradual {
                let slots = (
                    self.slot(source, Effect::BeginDepart, leaves),
                    self.slot(target, Effect::BeginArrive, comes),
                );
                self.step(source, Effect::EndDepart);
                self.step(target, Effect::EndArrive);
                slots
            } else {
                (self.slot(source, Effect::Depart, leaves), self.slot(target, Effect::Arrive, comes))
            };
            self.histories.rules.push(Rule::Carry { event: self.number, source, target });
        }
    }
}

impl Histories {
    /// Narrows what is possible in the slots of `rule` by the labels that the pages' orders have. Returns the
    /// pages for which less is possible now, or `None` if the rule cannot hold.
    pub(super) fn narrow(&mut self, rule: usize, found: &HashSet<(usize, Label)>) -> Option<Vec<u8>> {
        let mut changed = Vec::new();
        match &self.rules[rule] {
            Rule::Patterns { slots, patterns, .. } => {
                let roles: Vec<Roles> = slots.iter().map(|&slot| roles_of(slot, found)).collect();
                let mut allowed = vec![Roles::NOTHING; slots.len()];
                for pattern in patterns {
                    if pattern.iter().zip(&roles).any(|(pattern, roles)| pattern.and(*roles).is_nothing()) {
                        continue;
                    }
                    for (allowed, (pattern, roles)) in allowed.iter_mut().zip(pattern.iter().zip(&roles)) {
                        *allowed = allowed.or(pattern.and(*roles));
                    }
                }
                for (&slot, allowed) in slots.iter().zip(allowed) {
                    if allowed.is_nothing() {
                        return None;
                    }
                    if allowed != roles_of(slot, found) {
                        self.slots[slot].roles = allowed;
                        changed.push(self.page_of[slot]);
                    }
                }
            }
            &Rule::Carry { source, target, .. } => {
                let (left, came) = (loads_of(source, found), loads_of(target, found));
                let (holes, untouched) = (roles_of(source, found), roles_of(target, found));
                let gap =
                    !holes.and(Roles::HOLE).is_nothing() && !untouched.and(Roles::UNTOUCHED).is_nothing();
                // What left says more than what came: the source's history has its values.
                let both: Vec<Load> =
                    left.iter().filter(|load| came.iter().any(|other| load.fits(other))).copied().collect();
                if both.is_empty() && !gap {
                    return None;
                }
                let moved = if both.is_empty() { Roles::NOTHING } else { Roles::MOVED };
                for (slot, none, loads) in [(source, Roles::HOLE, &left), (target, Roles::UNTOUCHED, &came)] {
                    let allowed =
                        Labels { roles: if gap { moved.or(none) } else { moved }, loads: Some(both.clone()) };
                    let now = Labels { roles: roles_of(slot, found), loads: Some(loads.clone()) };
                    if allowed != now {
                        self.slots[slot] = allowed;
                        changed.push(self.page_of[slot]);
                    }
                }
            }
        }
        Some(changed)
    }
}

fn roles_of(slot: usize, found: &HashSet<(usize, Label)>) -> Roles {
    let labels = found.iter().filter(|found| found.0 == slot);
    labels.fold(Roles::NOTHING, |roles, found| roles.or(Roles::of(found.1)))
}

fn loads_of(slot: usize, found: &HashSet<(usize, Label)>) -> Vec<Load> {
    let mut loads: Vec<Load> = found
        .iter()
        .filter_map(|found| match found {
            (of, Label::Moved(load)) if *of == slot => Some(*load),
            _ => None,
        })
        .collect();
    loads.sort_unstable();
    // An open one stands for all that it fits: to name those too would say nothing.
    let open: Vec<Load> = loads.iter().filter(|load| load.value == Value::Open).copied().collect();
    loads.retain(|load| load.value == Value::Open || !open.iter().any(|open| open.fits(load)));
    loads
}
