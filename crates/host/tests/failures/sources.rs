//! The calls in the sources that can fail for want of memory.
//!
//! Which functions these are is read from the sources too: the allocator's entry points, and the functions
//! between them and the places where a failure is undone, carry `#[cfg_attr(debug_assertions,
//! track_caller)]`. A call inside such a function is its caller's: at run time the location is handed on, so
//! only the outermost call counts.

use proc_macro2::Span;
use std::fmt;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

/// The crates that an embedder has to do with, from the platform's interface up.
pub(crate) const CRATES: [&str; 15] = [
    "arch",
    "frame",
    "slab",
    "memcg",
    "swap",
    "vma-tree",
    "file",
    "pagetable",
    "vma",
    "thp",
    "pageout",
    "fault",
    "space",
    "reclaim",
    "mm",
];

/// A call, at the place that `core::panic::Location` names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Call {
    /// From the workspace's root, as the compiler is given it.
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) column: u32,
    /// The function that it stands in.
    pub(crate) function: String,
    callee: String,
}

impl Call {
    /// Whether it stands in `function` of `file`. A colon after the function goes before the name of what is
    /// called.
    pub(crate) fn is_in(&self, file: &str, function: &str) -> bool {
        let named = match function.split_once(": ") {
            Some((function, callee)) => self.function == function && self.callee == callee,
            None => self.function == function,
        };
        self.file == file && named
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, function, callee } = self;
        write!(f, "{file}:{line}:{column} (`{callee}` in `{function}`)")
    }
}

/// A function that can fail for want of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    owner: Option<String>,
    name: String,
    has_self: bool,
    /// Without `self`.
    arguments: usize,
}

/// Every call of an entry point that is not made on behalf of another one.
pub(crate) fn fallible_calls() -> Vec<Call> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for name in CRATES {
        read_module(&root, PathBuf::from(format!("crates/{name}/src/lib.rs")), &mut files);
    }
    let mut entries = Entries::default();
    for (_, file) in &files {
        entries.visit_file(file);
    }
    let mut calls = Vec::new();
    for (path, file) in &files {
        let mut search = Calls { entries: &entries.found, place: Place::default(), found: Vec::new() };
        search.visit_file(file);
        let path = path.to_str().expect("paths of sources are text");
        calls.extend(search.found.into_iter().map(|call| Call { file: path.to_owned(), ..call }));
    }
    calls.sort();
    calls
}

/// Reads the file of a module, and those of the modules that it declares.
pub(crate) fn read_module(root: &Path, path: PathBuf, into: &mut Vec<(PathBuf, syn::File)>) {
    let text = std::fs::read_to_string(root.join(&path));
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("a source has a name");
    let folder =
        if ["lib", "mod"].contains(&stem) { path.with_file_name("") } else { path.with_extension("") };
    for item in &file.items {
        if let syn::Item::Mod(module) = item
            && module.content.is_none()
            && !is_test(&module.attrs)
        {
            let beside = folder.join(format!("{}.rs", module.ident));
            let below = folder.join(format!("{}/mod.rs", module.ident));
            read_module(root, if root.join(&beside).exists() { beside } else { below }, into);
        }
    }
    into.push((path, file));
}

/// Whether an item is built for tests only.
pub(crate) fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("cfg") && mentions(attribute, "test"))
}

/// Whether a function hands its caller's location on.
fn is_tracked(attributes: &[syn::Attribute]) -> bool {
    attributes
        .iter()
        .any(|attribute| attribute.path().is_ident("cfg_attr") && mentions(attribute, "track_caller"))
}

fn mentions(attribute: &syn::Attribute, word: &str) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    let text = list.tokens.to_string();
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word)
}

/// The name of the type that an `impl` is for.
pub(crate) fn name_of(ty: &syn::Type) -> Option<String> {
    let syn::Type::Path(path) = ty else { return None };
    path.path.segments.last().map(|segment| segment.ident.to_string())
}

/// Collects the functions that carry the attribute.
#[derive(Default)]
struct Entries {
    owner: Option<String>,
    found: Vec<Entry>,
}

impl Entries {
    fn add(&mut self, attributes: &[syn::Attribute], signature: &syn::Signature) {
        if is_tracked(attributes) {
            let has_self = signature.receiver().is_some();
            self.found.push(Entry {
                owner: self.owner.clone(),
                name: signature.ident.to_string(),
                has_self,
                arguments: signature.inputs.len() - usize::from(has_self),
            });
        }
    }
}

impl<'ast> Visit<'ast> for Entries {
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.owner = name_of(&item.self_ty);
        visit::visit_item_impl(self, item);
        self.owner = None;
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.owner = Some(item.ident.to_string());
        visit::visit_item_trait(self, item);
        self.owner = None;
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.attrs, &item.sig);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.attrs, &item.sig);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.add(&item.attrs, &item.sig);
    }
}

/// Where the search is.
#[derive(Clone, Default)]
struct Place {
    owner: Option<String>,
    function: String,
    /// In an entry point itself, where calls are the caller's.
    in_entry: bool,
}

/// Collects the calls.
struct Calls<'e> {
    entries: &'e [Entry],
    place: Place,
    found: Vec<Call>,
}

impl Calls<'_> {
    fn within(&mut self, place: Place, search: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.place, place);
        search(self);
        self.place = outer;
    }

    fn in_function(&mut self, attributes: &[syn::Attribute], signature: &syn::Signature, body: &syn::Block) {
        if is_test(attributes) {
            return;
        }
        let function = signature.ident.to_string();
        let place = Place { function, in_entry: is_tracked(attributes), ..self.place.clone() };
        self.within(place, |search| search.visit_block(body));
    }

    fn add(&mut self, callee: &syn::Ident, at: Span) {
        if !self.place.in_entry {
            let start = at.start();
            self.found.push(Call {
                file: String::new(),
                line: u32::try_from(start.line).expect("sources are short"),
                column: u32::try_from(start.column + 1).expect("lines are short"),
                function: self.place.function.clone(),
                callee: callee.to_string(),
            });
        }
    }
}

impl<'ast> Visit<'ast> for Calls<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_test(&item.attrs) {
            let place = Place { owner: name_of(&item.self_ty), ..Place::default() };
            self.within(place, |search| visit::visit_item_impl(search, item));
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.in_function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.in_function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.in_function(&item.attrs, &item.sig, body);
        }
    }

    fn visit_expr_closure(&mut self, closure: &'ast syn::ExprClosure) {
        // A closure is a function of its own, which knows nothing of the caller of the one around it.
        let place = Place { in_entry: false, ..self.place.clone() };
        self.within(place, |search| visit::visit_expr_closure(search, closure));
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        // The types of receivers are not known here: the number of arguments tells equal names apart.
        let is_entry =
            |entry: &Entry| entry.has_self && call.method == entry.name && call.args.len() == entry.arguments;
        if self.entries.iter().any(is_entry) {
            self.add(&call.method, call.method.span());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(function) = &*call.func {
            let segments = &function.path.segments;
            let names: Vec<_> = segments.iter().map(|segment| segment.ident.to_string()).collect();
            let (name, owner) = (names.last(), names.len().checked_sub(2).map(|at| names[at].clone()));
            let owner = if owner.as_deref() == Some("Self") { self.place.owner.clone() } else { owner };
            let is_entry = |entry: &Entry| {
                name == Some(&entry.name)
                    && (entry.owner.is_none() || entry.owner == owner)
                    && call.args.len() == entry.arguments + usize::from(entry.has_self)
            };
            if let Some(last) = segments.last()
                && self.entries.iter().any(is_entry)
            {
                self.add(&last.ident, segments[0].ident.span());
            }
        }
        visit::visit_expr_call(self, call);
    }
}
