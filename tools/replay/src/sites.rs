//! Where programs mapped anonymous memory: in which file, and how far from its beginning.

use super::files::FileIds;
use crate::space::HostSpace;
use quire_arch::PAGE_SHIFT;
use quire_trace::event::{C_LIBRARIES, Call, CallDetail};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// The sites of all address spaces, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Sites {
    /// Copies share them until one changes.
    spaces: HashMap<usize, Rc<SpaceSites>>,
    /// Mappings that were looked at to name places, and sites that were copied.
    looked_at: u64,
}

/// So many may be. Then no more places get a name.
const MOST_LOOKED_AT: u64 = 1 << 26;

#[derive(Debug, Clone, Default)]
struct SpaceSites {
    /// The end and the site of the last mapping at an address.
    ranges: BTreeMap<u64, (u64, Rc<str>)>,
    /// Names of the places of calls.
    named: HashMap<(u64, u64), Option<Rc<str>>>,
}

impl Sites {
    /// Notes a call in address space number `number`, which `space` is.
    pub(super) fn note(&mut self, number: usize, space: &HostSpace<'_>, files: &FileIds<'_>, call: &Call) {
        if call.errno().is_some() {
            return;
        }
        if i64::from(call.number) == libc::SYS_mremap {
            let [from, _, len, ..] = call.args;
            return self.moved(number, from, (call.result as u64, len));
        }
        let CallDetail::Site { instruction, on_stack } = call.detail else { return };
        let sites = self.spaces.entry(number).or_default();
        let looked_at = &mut self.looked_at;
        let Some(sites) = sites_to_change(sites, looked_at) else { return };
        let named = sites.named.entry((instruction, on_stack)).or_insert_with(|| {
            *looked_at += space.figures().mappings;
            if *looked_at > MOST_LOOKED_AT { None } else { name(space, files, instruction, on_stack) }
        });
        let Some(name) = named else { return };
        let (start, len) = (call.result as u64, call.args[1]);
        sites.ranges.insert(start, (start.saturating_add(len), Rc::clone(name)));
    }

    /// The mapping at `from` is at `to` now, or grew or shrank there: `to` has its start and its length.
    fn moved(&mut self, number: usize, from: u64, to: (u64, u64)) {
        let Some(sites) = self.spaces.get_mut(&number) else { return };
        let before = sites.ranges.range(..=from).next_back();
        if let Some(site) = before.filter(|(_, (end, _))| from < *end).map(|(_, (_, site))| Rc::clone(site))
            && let Some(sites) = sites_to_change(sites, &mut self.looked_at)
        {
            sites.ranges.insert(to.0, (to.0.saturating_add(to.1), site));
        }
    }

    /// Address space number `child` is a copy of `parent`.
    pub(super) fn copy(&mut self, parent: usize, child: usize) {
        if let Some(sites) = self.spaces.get(&parent).cloned() {
            self.spaces.insert(child, sites);
        }
    }

    /// Where most of the bytes from `start` to `end` of an address space were mapped, if that is known.
    pub(super) fn of(&self, number: usize, start: u64, end: u64) -> Option<String> {
        let mut bytes: HashMap<&Rc<str>, u64> = HashMap::new();
        // A later mapping at a higher address hides the end of an earlier range.
        let mut rest = end;
        for (&from, (to, name)) in self.spaces.get(&number)?.ranges.range(..end).rev() {
            let (low, high) = (from.max(start), (*to).min(rest));
            if low < high {
                *bytes.entry(name).or_default() += high - low;
            }
            rest = rest.min(from);
            if rest <= start {
                break;
            }
        }
        let most = bytes.into_iter().max_by(|one, other| (one.1, other.0).cmp(&(other.1, one.0)));
        most.map(|(name, _)| name.to_string())
    }
}

/// Sites that may be shared, as ones that are not. `None` if too much was copied so far.
fn sites_to_change<'s>(sites: &'s mut Rc<SpaceSites>, looked_at: &mut u64) -> Option<&'s mut SpaceSites> {
    if Rc::strong_count(sites) > 1 {
        *looked_at += sites.ranges.len() as u64;
        if *looked_at > MOST_LOOKED_AT {
            return None;
        }
    }
    Some(Rc::make_mut(sites))
}

/// A place in a program as the name of its file and the offset in that.
fn name(space: &HostSpace<'_>, files: &FileIds<'_>, instruction: u64, on_stack: u64) -> Option<Rc<str>> {
    let mut found = [None, None];
    space.mappings().for_each(|mapping| {
        for (place, address) in [instruction, on_stack].into_iter().enumerate() {
            let within = mapping.range.start().0 <= address && address < mapping.range.end().0;
            if let Some(name) = mapping.file.filter(|_| within).and_then(|file| files.name(file)) {
                let offset = address - mapping.range.start().0 + (mapping.page_offset << PAGE_SHIFT);
                found[place] = Some((name, offset));
            }
        }
    });
    let [made, returns] = found;
    let (made, offset) = made?;
    let by_library = C_LIBRARIES.iter().any(|start| made.starts_with(start));
    let (file, offset) = returns.filter(|_| by_library).unwrap_or((made, offset));
    Some(format!("{file}+{offset:#x}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_mapped_last_counts() {
        let mut sites = Sites::default();
        let ranges = [(0x1000, 0x9000, "heap"), (0x4000, 0x5000, "stack"), (0x9000, 0xa000, "heap")];
        let ranges = ranges.map(|(start, end, name)| (start, (end, Rc::from(name))));
        let ranges = SpaceSites { ranges: ranges.into(), named: HashMap::new() };
        sites.spaces.insert(3, Rc::new(ranges));
        assert_eq!(sites.of(3, 0x1000, 0xa000).as_deref(), Some("heap"));
        assert_eq!(sites.of(3, 0x4000, 0x5000).as_deref(), Some("stack"));
        assert_eq!(sites.of(3, 0xa000, 0xb000), None);
        assert_eq!(sites.of(4, 0x1000, 0xa000), None);
        // A mapping that mremap moves keeps its site; one without a site gets none.
        sites.moved(3, 0x4000, (0x20000, 0x3000));
        sites.moved(3, 0x10_0000, (0x30000, 0x1000));
        assert_eq!(sites.of(3, 0x20000, 0x23000).as_deref(), Some("stack"));
        assert_eq!(sites.of(3, 0x30000, 0x31000), None);
        sites.copy(3, 4);
        assert_eq!(sites.of(4, 0x9000, 0xb000).as_deref(), Some("heap"));
    }
}
