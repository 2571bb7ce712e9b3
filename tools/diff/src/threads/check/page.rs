//! One page: its states, and what each step of an operation does to them.
//!
//! Where Linux is weaker than a single instant, a call takes two steps on a page, and between them more is
//! possible:
//!
//! - *`munmap`* lets faults in again before the pages are gone (the lock is downgraded to reading): one CPU
//!   gets MAPERR while another still uses the translation in its TLB. After the return no thread does.
//! - *DONTNEED* locks no fault out and flushes at its end: one CPU has a new page already while another
//!   reads, and writes, the old one ([`Content::ghosts`]).
//! - *`mremap`* installs the page at the new place before the old translation is flushed: for a moment the
//!   page is in both places ([`Page::InMotion`]).
//!
//! In all three Quire does the same, or is stronger. Calls that change mappings exclude each other, and these
//! phases, by the memory lock; so they find no page in such a phase. But on Linux DONTNEED of one mapping
//! holds that mapping's lock alone, and drops it before the flush (seen on 6.18). What flushes itself does
//! not show that; `mlock` and `munlock` do not flush: after an `mlock` that returned a CPU still has the page
//! that the DONTNEED, which began before, dropped. A write to it is lost.

use super::super::history::{ChildPage, Refusal};
use super::super::program::{Rights, Word};

/// What a page's word holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Value {
    /// Zero, or the write with this number.
    Known(u8),
    /// Whatever the next read finds: it came from another page, and that page's history does not say yet what
    /// it was.
    Open,
}

impl Value {
    pub(super) const ZERO: Self = Self::Known(0);

    /// The value that this is once `seen` was read, if it can be.
    fn seen_as(self, seen: u8) -> Option<Self> {
        (self == Self::Open || self == Self::Known(seen)).then_some(Self::Known(seen))
    }
}

/// A set of values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Values([u64; 4]);

impl Values {
    fn contains(self, value: u8) -> bool {
        self.0[usize::from(value / 64)] >> (value % 64) & 1 != 0
    }

    fn with(mut self, value: Value) -> Self {
        match value {
            Value::Known(value) => self.0[usize::from(value / 64)] |= 1 << (value % 64),
            Value::Open => self.0 = [u64::MAX; 4],
        }
        self
    }
}

/// What a mapped page is like.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Content {
    pub(super) rights: Rights,
    pub(super) locked: bool,
    pub(super) value: Value,
    /// What old pages hold that were dropped and that some CPU may still see.
    pub(super) ghosts: Values,
    /// DONTNEEDs in progress; with none there are no ghosts.
    pub(super) drops: u8,
}

/// A page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Page {
    Unmapped,
    Mapped(Content),
    /// Being unmapped: a CPU may still have it.
    Leaving(Content),
    /// At both ends of a move, where accesses to both ends overlap it: each sees what the other writes.
    InMotion(Content),
}

/// What of a page a move carries to another place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Load {
    pub(super) rights: Rights,
    pub(super) locked: bool,
    pub(super) value: Value,
}

impl Load {
    /// Whether the two may be the same page.
    pub(super) fn fits(&self, other: &Self) -> bool {
        let open = self.value == Value::Open || other.value == Value::Open;
        (self.rights, self.locked) == (other.rights, other.locked) && (open || self.value == other.value)
    }

    fn content(self) -> Content {
        let Self { rights, locked, value } = self;
        Content { rights, locked, value, ghosts: Values::default(), drops: 0 }
    }
}

impl Content {
    fn load(&self) -> Load {
        Load { rights: self.rights, locked: self.locked, value: self.value }
    }
}

/// What a step of a call did to one page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Label {
    /// Its work.
    Done,
    /// Nothing: there was no mapping.
    Hole,
    /// Nothing: the mapping does not allow it.
    Refused,
    /// Nothing: the call had ended before it came here.
    Untouched,
    /// It moved this.
    Moved(Load),
}

/// Labels that a step may have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Labels {
    pub(super) roles: Roles,
    /// Which loads may be moved; `None` for any.
    pub(super) loads: Option<Vec<Load>>,
}

/// Labels without loads, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Roles(u8);

impl Roles {
    pub(super) const NOTHING: Self = Self(0);
    pub(super) const DONE: Self = Self(1);
    pub(super) const HOLE: Self = Self(2);
    pub(super) const REFUSED: Self = Self(4);
    pub(super) const UNTOUCHED: Self = Self(8);
    pub(super) const MOVED: Self = Self(16);

    pub(super) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) const fn is_nothing(self) -> bool {
        self.0 == 0
    }

    pub(super) fn of(label: Label) -> Self {
        match label {
            Label::Done => Self::DONE,
            Label::Hole => Self::HOLE,
            Label::Refused => Self::REFUSED,
            Label::Untouched => Self::UNTOUCHED,
            Label::Moved(_) => Self::MOVED,
        }
    }
}

impl Labels {
    pub(super) const DONE: Self = Self::only(Roles::DONE);

    pub(super) const fn only(roles: Roles) -> Self {
        Self { roles, loads: None }
    }

    fn allow(&self, label: Label) -> bool {
        !self.roles.and(Roles::of(label)).is_nothing()
            && match (label, &self.loads) {
                // One that is open may turn out to be any of several.
                (Label::Moved(load), Some(loads)) => loads.iter().any(|allowed| allowed.fits(&load)),
                _ => true,
            }
    }
}

/// One step of an operation, as far as one page is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    Read(Result<Word, Refusal>),
    Write(u8, Result<(), Refusal>),
    Map(Rights),
    BeginUnmap,
    EndUnmap,
    Protect(Rights),
    BeginDrop,
    EndDrop,
    /// `mlock` and `munlock`, which may have to wait until no page is being dropped.
    SetLocked {
        locked: bool,
        waits: bool,
    },
    /// `mlock` faults its pages in, after it has locked all of them: it fails where nothing is allowed, and
    /// passes over what is unmapped.
    FaultIn,
    Populate {
        write: bool,
    },
    /// A move takes the page away.
    Depart,
    BeginDepart,
    EndDepart,
    /// A move brings a page.
    Arrive,
    BeginArrive,
    EndArrive,
    Fork(ChildPage),
}

impl Effect {
    /// Every state in which the page can be after the step, with the label that the step has then.
    pub(super) fn step(&self, page: Page, allowed: &Labels, mut next: impl FnMut(Label, Page)) {
        let mut offer = |label, page| {
            if allowed.allow(label) {
                next(label, page);
            }
        };
        let settled = match page {
            Page::Unmapped => true,
            Page::Mapped(content) => {
                content.drops == 0 || matches!(self, Self::SetLocked { waits: false, .. })
            }
            Page::Leaving(_) | Page::InMotion(_) => false,
        };
        match *self {
            Self::Read(outcome) => read(page, outcome, |page| offer(Label::Done, page)),
            Self::Write(value, outcome) => write(page, value, outcome, |page| offer(Label::Done, page)),
            Self::Populate { write } => {
                offer(Label::Untouched, page);
                match page {
                    Page::Mapped(content) if content.rights.allow(write) => offer(Label::Done, page),
                    Page::Mapped(_) => offer(Label::Refused, page),
                    Page::Unmapped | Page::Leaving(_) => offer(Label::Hole, page),
                    Page::InMotion(_) => {}
                }
            }
            Self::FaultIn => {
                offer(Label::Untouched, page);
                match page {
                    Page::Mapped(Content { rights: Rights::None, .. }) => offer(Label::Refused, page),
                    Page::InMotion(_) => {}
                    _ => offer(Label::Done, page),
                }
            }
            Self::BeginDrop => {
                offer(Label::Untouched, page);
                match page {
                    Page::Mapped(content) if content.locked => offer(Label::Refused, page),
                    Page::Mapped(content) => {
                        let ghosts = content.ghosts.with(content.value);
                        let drops = content.drops + 1;
                        let content = Content { value: Value::ZERO, ghosts, drops, ..content };
                        offer(Label::Done, Page::Mapped(content));
                    }
                    Page::Unmapped | Page::Leaving(_) => offer(Label::Hole, page),
                    Page::InMotion(_) => {}
                }
            }
            Self::EndDrop => offer(Label::Done, end_drop(page)),
            Self::EndUnmap => offer(
                Label::Done,
                match page {
                    Page::Leaving(_) => Page::Unmapped,
                    other => other,
                },
            ),
            Self::EndDepart => offer(
                Label::Done,
                match page {
                    Page::InMotion(_) => Page::Unmapped,
                    other => other,
                },
            ),
            Self::EndArrive => offer(
                Label::Done,
                match page {
                    Page::InMotion(content) => Page::Mapped(content),
                    other => other,
                },
            ),
            _ if settled => self.step_settled(page, allowed, offer),
            _ => {}
        }
    }

    /// The steps of calls that change mappings.
    fn step_settled(&self, page: Page, allowed: &Labels, mut offer: impl FnMut(Label, Page)) {
        let content = match page {
            Page::Mapped(content) => Some(content),
            _ => None,
        };
        match *self {
            Self::Map(rights) => {
                let new = Load { rights, locked: false, value: Value::ZERO };
                offer(Label::Done, Page::Mapped(new.content()));
            }
            Self::BeginUnmap => offer(Label::Done, content.map_or(page, Page::Leaving)),
            Self::Protect(rights) => {
                change(content, &mut offer, |content| Content { rights, ..content });
            }
            Self::SetLocked { locked, .. } => {
                change(content, &mut offer, |content| Content { locked, ..content });
            }
            Self::Depart => match content {
                Some(content) => offer(Label::Moved(content.load()), Page::Unmapped),
                None => offer(Label::Hole, page),
            },
            Self::BeginDepart => match content {
                Some(content) => {
                    let open = Content { value: Value::Open, ..content };
                    offer(Label::Moved(open.load()), Page::InMotion(open));
                }
                None => offer(Label::Hole, page),
            },
            Self::Arrive | Self::BeginArrive => {
                offer(Label::Untouched, page);
                for load in allowed.loads.iter().flatten() {
                    let content = load.content();
                    let page = match self {
                        Self::Arrive => Page::Mapped(content),
                        _ => Page::InMotion(Content { value: Value::Open, ..content }),
                    };
                    offer(Label::Moved(*load), page);
                }
            }
            Self::Fork(child) => fork(page, content, child, |page| offer(Label::Done, page)),
            _ => {}
        }
    }
}

/// A call that changes mappings one after the other, and ends where there is none.
fn change(
    content: Option<Content>,
    offer: &mut impl FnMut(Label, Page),
    new: impl FnOnce(Content) -> Content,
) {
    let page = content.map_or(Page::Unmapped, Page::Mapped);
    offer(Label::Untouched, page);
    match content {
        Some(content) => offer(Label::Done, Page::Mapped(new(content))),
        None => offer(Label::Hole, page),
    }
}

fn number(word: Word) -> Option<u8> {
    match word {
        Word::Zero => Some(0),
        Word::Written(value) => Some(value),
        Word::Foreign(_) => None,
    }
}

fn read(page: Page, outcome: Result<Word, Refusal>, mut next: impl FnMut(Page)) {
    match (page, outcome) {
        (Page::Unmapped | Page::Leaving(_), Err(Refusal::NotMapped)) => next(page),
        (Page::Mapped(content), Err(Refusal::Denied)) if !content.rights.allow(false) => next(page),
        (Page::Mapped(content) | Page::Leaving(content), Ok(word)) if content.rights.allow(false) => {
            let Some(seen) = number(word) else { return };
            if content.ghosts.contains(seen) {
                next(page);
            }
            if let Some(value) = content.value.seen_as(seen) {
                let content = Content { value, ..content };
                next(if matches!(page, Page::Mapped(_)) {
                    Page::Mapped(content)
                } else {
                    Page::Leaving(content)
                });
            }
        }
        (Page::InMotion(content), Ok(Word::Zero | Word::Written(_))) if content.rights.allow(false) => {
            next(page);
        }
        _ => {}
    }
}

fn write(page: Page, value: u8, outcome: Result<(), Refusal>, mut next: impl FnMut(Page)) {
    match (page, outcome) {
        (Page::Unmapped | Page::Leaving(_), Err(Refusal::NotMapped)) => next(page),
        (Page::Mapped(content), Err(Refusal::Denied)) if !content.rights.allow(true) => next(page),
        (Page::Mapped(content), Ok(())) if content.rights.allow(true) => {
            let value = Value::Known(value);
            next(Page::Mapped(Content { value, ..content }));
            if content.drops > 0 {
                next(Page::Mapped(Content { ghosts: content.ghosts.with(value), ..content }));
            }
        }
        (Page::Leaving(content), Ok(())) if content.rights.allow(true) => {
            next(Page::Leaving(Content { value: Value::Known(value), ..content }));
        }
        (Page::InMotion(content), Ok(())) if content.rights.allow(true) => next(page),
        _ => {}
    }
}

fn end_drop(page: Page) -> Page {
    match page {
        Page::Mapped(content) if content.drops > 1 => {
            Page::Mapped(Content { drops: content.drops - 1, ..content })
        }
        Page::Mapped(content) => Page::Mapped(Content { drops: 0, ghosts: Values::default(), ..content }),
        other => other,
    }
}

/// A child's copy of a page is the page at one instant. The child says what it holds and what it allows.
fn fork(page: Page, content: Option<Content>, child: ChildPage, mut next: impl FnMut(Page)) {
    let Some(content) = content else {
        if (child.read, child.write) == (Err(Refusal::NotMapped), Err(Refusal::NotMapped)) {
            next(page);
        }
        return;
    };
    let writes = if content.rights.allow(true) { Ok(()) } else { Err(Refusal::Denied) };
    if child.write == writes {
        read(page, child.read, next);
    }
}
