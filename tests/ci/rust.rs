//! What the other checks need to know of each Rust file: functions, test code, `unsafe`.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, ImplItemFn, ItemFn, ItemImpl, ItemMod, Signature, TraitItemFn};

use crate::tree;

/// One Rust file. Lines count from 1.
pub(crate) struct RustFile {
    /// Path from the root.
    pub path: PathBuf,
    /// Its lines.
    pub lines: Vec<String>,
    /// Every function with a body, nested ones too.
    pub functions: Vec<Function>,
    /// Lines where the word `unsafe` stands in code, tests left out.
    pub unsafe_lines: BTreeSet<usize>,
    test_ranges: Vec<RangeInclusive<usize>>,
    is_test: bool,
}

/// One function with a body.
pub(crate) struct Function {
    /// Its name.
    pub name: String,
    /// The line of its first attribute or, without any, of its signature.
    pub attributes_line: usize,
    /// The line of its signature.
    pub line: usize,
    /// Lines from the signature to the closing brace.
    pub lines: usize,
    /// Whether it is compiled only for tests.
    pub is_test: bool,
}

impl RustFile {
    /// Lines of code: no tests, no comments, no blank lines.
    pub(crate) fn code_lines(&self) -> usize {
        let is_code = |line: &str| !line.is_empty() && !line.starts_with("//");
        let numbered = (1..).zip(&self.lines);
        numbered.filter(|(number, line)| is_code(line.trim_start()) && !self.is_test_line(*number)).count()
    }

    fn is_test_line(&self, line: usize) -> bool {
        self.is_test || self.test_ranges.iter().any(|range| range.contains(&line))
    }
}

/// Every Rust file of the repository, read once.
pub(crate) fn files() -> &'static [RustFile] {
    static FILES: OnceLock<Vec<RustFile>> = OnceLock::new();
    FILES.get_or_init(|| {
        let mut test_modules = BTreeSet::new();
        let paths = tree::files_ending("rs");
        let mut files: Vec<RustFile> = paths.into_iter().map(|path| read(path, &mut test_modules)).collect();
        for file in &mut files {
            settle(file, &test_modules);
        }
        files
    })
}

fn read(path: PathBuf, test_modules: &mut BTreeSet<PathBuf>) -> RustFile {
    let text = tree::text(&path).expect("Rust source is text");
    analyse(path, &text, test_modules)
}

fn analyse(path: PathBuf, text: &str, test_modules: &mut BTreeSet<PathBuf>) -> RustFile {
    let syntax = syn::parse_file(text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut finder = Finder { folder: folder_of(&path), ..Finder::default() };
    finder.visit_file(&syntax);
    test_modules.extend(finder.test_modules);
    let (functions, test_ranges) = (finder.functions, finder.test_ranges);
    let mut unsafe_lines = BTreeSet::new();
    let tokens = text.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    find_unsafe(tokens, &mut unsafe_lines);
    let is_test = path.components().any(|part| part.as_os_str() == "tests");
    let lines = text.lines().map(str::to_owned).collect();
    RustFile { path, lines, functions, unsafe_lines, test_ranges, is_test }
}

/// Marks what is test code, now that every `#[cfg(test)] mod x;` is known.
fn settle(file: &mut RustFile, test_modules: &BTreeSet<PathBuf>) {
    let stem = file.path.with_extension("");
    file.is_test |= test_modules.iter().any(|module| stem.starts_with(module));
    let tests: BTreeSet<usize> = (1..=file.lines.len()).filter(|&line| file.is_test_line(line)).collect();
    for function in &mut file.functions {
        function.is_test = tests.contains(&function.line);
    }
    file.unsafe_lines.retain(|line| !tests.contains(line));
}

fn find_unsafe(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => find_unsafe(group.stream(), lines),
            TokenTree::Ident(word) if word == "unsafe" => {
                lines.insert(word.span().start().line);
            }
            _ => {}
        }
    }
}

/// Walks a file and notes functions and test code.
#[derive(Default)]
struct Finder {
    /// Where the modules that the file declares have theirs.
    folder: PathBuf,
    functions: Vec<Function>,
    test_ranges: Vec<RangeInclusive<usize>>,
    test_modules: BTreeSet<PathBuf>,
}

impl Finder {
    fn function(&mut self, attributes: &[Attribute], signature: &Signature, block: &Block) {
        self.note_test(attributes, block.span().end().line);
        let line = signature.span().start().line;
        let attributes_line = attributes.first().map_or(line, |first| first.span().start().line);
        let lines = block.span().end().line - line + 1;
        let name = signature.ident.to_string();
        self.functions.push(Function { name, attributes_line, line, lines, is_test: false });
    }

    fn note_test(&mut self, attributes: &[Attribute], last_line: usize) {
        if let Some(attribute) = attributes.iter().find(|attribute| is_test_only(attribute)) {
            self.test_ranges.push(attribute.span().start().line..=last_line);
        }
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        self.note_test(&module.attrs, module.span().end().line);
        if module.content.is_none() && module.attrs.iter().any(is_test_only) {
            self.test_modules.insert(self.folder.join(module.ident.to_string()));
        }
        visit::visit_item_mod(self, module);
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        self.note_test(&item.attrs, item.span().end().line);
        visit::visit_item_impl(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.attrs, &item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

/// Where the modules declared in `path` have their files.
fn folder_of(path: &Path) -> PathBuf {
    match path.file_stem().and_then(|stem| stem.to_str()) {
        Some("lib" | "main" | "mod") => path.parent().expect("a file lies in a folder").to_owned(),
        _ => path.with_extension(""),
    }
}

/// `#[test]`, `#[cfg(test)]` or a `cfg` that demands `test` among others.
fn is_test_only(attribute: &Attribute) -> bool {
    let condition = || match &attribute.meta {
        syn::Meta::List(list) => list.tokens.to_string().replace(' ', ""),
        _ => String::new(),
    };
    attribute.path().is_ident("test")
        || attribute.path().is_ident("cfg") && {
            let condition = condition();
            condition == "test" || condition.starts_with("all(test,")
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_tests_and_unsafe_are_found() {
        let mut test_modules = BTreeSet::new();
        let mut file = analyse("core/x/src/a.rs".into(), SOURCE, &mut test_modules);
        settle(&mut file, &test_modules);
        let functions: Vec<_> =
            file.functions.iter().map(|f| (f.name.as_str(), f.lines, f.is_test)).collect();
        assert_eq!(functions, [("outer", 5, false), ("inner", 1, false), ("test", 3, true)]);
        assert_eq!(file.unsafe_lines, BTreeSet::from([4]));
        assert_eq!(file.code_lines(), 6);
        assert_eq!(test_modules, BTreeSet::from([PathBuf::from("core/x/src/a/more")]));
    }

    #[test]
    fn a_module_for_tests_makes_its_file_a_test() {
        let test_modules = BTreeSet::from([PathBuf::from("core/x/src/a/more")]);
        let mut file = analyse("core/x/src/a/more.rs".into(), "fn helper() {}", &mut BTreeSet::new());
        settle(&mut file, &test_modules);
        assert!(file.functions[0].is_test);
    }

    const SOURCE: &str = r#"/// Doc.
#[inline]
pub fn outer() {
    let x = unsafe { y() };
    fn inner() {}
    x
}
#[cfg(test)]
mod more;
#[cfg(test)]
mod tests {
    #[test]
    fn test() {
        unsafe { z() }
    }
}
"#;
}
