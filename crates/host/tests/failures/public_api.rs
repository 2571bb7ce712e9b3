//! The public functions of the core that are told of something which is not theirs: a frame, a slot, a
//! pointer, an order of I/O, a count of references or maps. Safe code of an embedder calls them too, so each
//! has to be safe whatever it is told, or out of an embedder's reach. `public_api.txt` says which, for each.
//!
//! A [`Memory`](quire_mm::Memory) gives the types of the crates below out only with the feature `internals`,
//! which is for the tests and tools of this project. So a function of those crates may trust its caller; one
//! of `Memory`, `Space` and what they give out may not.
//!
//! What macros declare is not seen: the setters of the views of frames. They write numbers, and none that a
//! walk takes for a pointer.

use crate::sources::{CRATES, is_test, name_of, read_module};
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

/// Types of arguments that name something of another owner.
const NAMES: [&str; 11] = [
    "Pfn",
    "NonNull",
    "SlotId",
    "PageIo",
    "SlotPtr",
    "Location",
    "OwnerWord",
    "const",
    "mut_pointer",
    "SpaceCore",
    "HeldPage",
];

/// Types that have functions which trust their callers.
const INTERNALS: [&str; 56] = [
    "Frames",
    "FrameFolios",
    "FrameLimbo",
    "FramePcp",
    "FrameCaches",
    "FrameWatermarks",
    "FrameHotplug",
    "FrameReports",
    "FrameAudit",
    "Memcgs",
    "MemcgTree",
    "MemcgCounters",
    "MemcgCharges",
    "MemcgFolios",
    "MemcgPrograms",
    "DeferredSplits",
    "MemcgFiles",
    "MemcgLifecycle",
    "MemcgAudit",
    "Swap",
    "SwapDevices",
    "SlotCounts",
    "SwapCache",
    "SwapIo",
    "SlotReclaim",
    "SlotAllocator",
    "ClusterDiscard",
    "Swapoff",
    "SwapAudit",
    "Spaces",
    "DirectReclaim",
    "Victims",
    "VmaStore",
    "MemoryCore",
    "Tables",
    "Gather",
    "HugeLeaves",
    "Walker",
    "Protector",
    "Unmapper",
    "Guards",
    "Mover",
    "Forker",
    "Rmap",
    "Thp",
    "SwapIn",
    "Faults",
    "SpaceCore",
    "Exits",
    "SpaceHold",
    "ReclaimHandle",
    "UnmapBatch",
    "Cold",
    "LazyFree",
    "VmFault",
    "MmapWriter",
];

/// What an embedder gets without features.
const REACHABLE: [&str; 9] = [
    "Memory",
    "Space",
    "SpaceMappings",
    "SpaceOom",
    "SpacePrctl",
    "PinnedPage",
    "Mapping",
    "SwapDevice",
    "Platform",
];

/// Why a function may be safe.
const REASONS: [&str; 4] = ["checks", "reads", "trusts", "value"];

/// Collects public safe functions.
#[derive(Default)]
struct Functions {
    owner: Option<String>,
    of_trait: bool,
    /// By owner and name, what the arguments name.
    named: BTreeMap<String, BTreeSet<&'static str>>,
    /// By owner and name, the internal types that the result gives out.
    given: BTreeMap<String, BTreeSet<&'static str>>,
}

fn words(tokens: &impl ToTokens) -> Vec<String> {
    let text = tokens.to_token_stream().to_string().replace("* mut", " mut_pointer ");
    text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned).collect()
}

impl Functions {
    fn add(&mut self, attributes: &[syn::Attribute], public: bool, signature: &syn::Signature) {
        let gated = attributes.iter().any(|attribute| {
            attribute.path().is_ident("cfg") && words(&attribute.meta).iter().any(|word| word == "feature")
        });
        if !public || signature.unsafety.is_some() || gated || is_test(attributes) {
            return;
        }
        let owner = self.owner.as_deref().unwrap_or("-");
        let name = format!("{owner}::{}", signature.ident);
        let arguments = signature.inputs.iter().flat_map(|argument| match argument {
            syn::FnArg::Typed(typed) => words(&typed.ty),
            syn::FnArg::Receiver(_) => Vec::new(),
        });
        let arguments: Vec<_> = arguments.collect();
        let named: BTreeSet<_> =
            NAMES.into_iter().filter(|name| arguments.iter().any(|word| word == name)).collect();
        if !named.is_empty() {
            self.named.insert(name.clone(), named);
        }
        let result = words(&signature.output);
        let given: BTreeSet<_> =
            INTERNALS.into_iter().filter(|name| result.iter().any(|word| word == name)).collect();
        if !given.is_empty() && REACHABLE.contains(&owner) {
            self.given.insert(name, given);
        }
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.owner = name_of(&item.self_ty);
        self.of_trait = item.trait_.is_some();
        visit::visit_item_impl(self, item);
        (self.owner, self.of_trait) = (None, false);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.owner = Some(item.ident.to_string());
        let public = matches!(item.vis, syn::Visibility::Public(_));
        for function in &item.items {
            if let syn::TraitItem::Fn(function) = function {
                self.add(&function.attrs, public, &function.sig);
            }
        }
        self.owner = None;
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.attrs, matches!(item.vis, syn::Visibility::Public(_)), &item.sig);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        let public = matches!(item.vis, syn::Visibility::Public(_)) && !self.of_trait;
        self.add(&item.attrs, public, &item.sig);
    }
}

fn functions() -> BTreeMap<&'static str, Functions> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: &'static str| {
        let mut files = Vec::new();
        read_module(&root, PathBuf::from(format!("crates/{name}/src/lib.rs")), &mut files);
        let mut found = Functions::default();
        // Modules that exist with the feature only.
        for (_, file) in files.iter().filter(|(path, _)| !path.ends_with("internals.rs")) {
            found.visit_file(file);
        }
        (name, found)
    };
    CRATES.into_iter().map(read).collect()
}

/// A row of the table: crate, function, reason.
fn table() -> BTreeMap<(String, String), String> {
    let rows = include_str!("public_api.txt").lines().filter(|row| !row.is_empty() && !row.starts_with('#'));
    rows.map(|row| {
        let fields: Vec<_> = row.split_whitespace().collect();
        let [name, function, reason] = fields[..] else { panic!("{row:?} has not three words") };
        assert!(REASONS.contains(&reason), "{row:?} has no reason");
        ((name.to_owned(), function.to_owned()), reason.to_owned())
    })
    .collect()
}

/// Each function has a row, and each row a function.
#[test]
fn each_function_that_names_what_is_not_its_own_is_safe_or_out_of_reach() {
    let mut table = table();
    let mut missing = Vec::new();
    for (name, found) in functions() {
        for (function, named) in found.named {
            let key = (name.to_owned(), function.clone());
            let reason = table.remove(&key);
            if reason.is_none() {
                missing.push(format!("{name} {function} ({named:?})"));
            }
            let owner = function.split("::").next().unwrap_or_default();
            assert!(
                !REACHABLE.contains(&owner) || reason.as_deref() != Some("trusts"),
                "an embedder can call {function}, which trusts its caller"
            );
        }
    }
    assert!(missing.is_empty(), "not in public_api.txt:\n{}", missing.join("\n"));
    assert!(table.is_empty(), "in public_api.txt, but not in the sources: {:?}", table.keys());
}

/// Nothing that an embedder gets without features leads to what trusts its caller.
#[test]
fn memory_and_space_give_no_internals_out() {
    for (name, found) in functions() {
        assert!(found.given.is_empty(), "quire-{name} gives internals out: {:?}", found.given);
    }
}
