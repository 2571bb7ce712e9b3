//! Checking histories: per-page linearisability.
//!
//! Each operation has a stamp from before it began and one from after it returned. A history is right if each
//! operation can be given instants between its stamps, one for each page that it concerns, such that every
//! page, step by step, behaves as one page of a process that has a single thread. A call over several pages
//! is not atomic: its instants can have any order. (`page` says where more than one instant is needed, and
//! why.)
//!
//! Pages are searched one by one (`search`), which is what makes this fast. Two things tie pages together,
//! and both are kept as rules about the *labels* of steps, i.e. what they did to their page (`calls`):
//!
//! - The result of a call over several pages: an ENOMEM of `mprotect` needs a page that was a hole, with all
//!   pages before it changed and none behind it.
//! - `mremap`: what left one page came to another.
//!
//! After a search each step has the labels that it has in some right order. A rule takes away those that fit
//! no choice of the other pages' labels, pages that lost some are searched again, and so on until nothing
//! changes. If a page has no order left, or a rule no choice, the history is wrong. (The reverse does not
//! hold: labels are kept one by one, not in combinations. So a wrong history may pass where several failed
//! calls or moves overlap; a right one never fails.)

mod calls;
mod page;
mod search;
#[cfg(test)]
mod tests;

use super::Side;
use super::history::Event;
use calls::Histories;
use search::Found;
use std::collections::HashSet;

/// What is wrong with a history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// The outcome of this event is impossible, whatever the other threads did.
    Outcome(usize),
    /// No order of the page's operations explains them. One of the events is the first that cannot be
    /// explained.
    Page(u8, Vec<usize>),
    /// The result of this call fits nothing that its pages can have been.
    Call(usize),
}

/// The result of checking a history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum HistoryVerdict {
    Right,
    Wrong(Wrong),
    /// Too many operations were concurrent for the search.
    Undecided,
}

/// Checks a history of `side`.
pub(super) fn check(events: &[Event], side: Side) -> HistoryVerdict {
    let mut histories = match Histories::of(events, side) {
        Ok(histories) => histories,
        Err(event) => return HistoryVerdict::Wrong(Wrong::Outcome(event)),
    };
    let mut found: Vec<HashSet<_>> = vec![HashSet::new(); histories.pages.len()];
    let mut to_search: Vec<u8> = (0..histories.pages.len() as u8).collect();
    while !to_search.is_empty() {
        for &page in &to_search {
            let place = usize::from(page);
            match search::search(&histories.pages[place], &histories.slots) {
                Found::Orders(labels) => found[place] = labels,
                Found::None(events) => return HistoryVerdict::Wrong(Wrong::Page(page, events)),
                Found::TooMany => return HistoryVerdict::Undecided,
            }
        }
        to_search.clear();
        let all: HashSet<_> = found.iter().flatten().copied().collect();
        for rule in 0..histories.rules.len() {
            match histories.narrow(rule, &all) {
                Some(pages) => to_search.extend(pages),
                None => return HistoryVerdict::Wrong(Wrong::Call(histories.rules[rule].event())),
            }
        }
        to_search.sort_unstable();
        to_search.dedup();
    }
    HistoryVerdict::Right
}
