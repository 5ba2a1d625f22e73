//! Several kernels as one, whose only workgroup runs them one after another.
//!
//! [`link`] works on the texts that the templates wrote. Declarations of a module get names of their own, but for those that an earlier
//! module declares alike; entry points become functions, which the linked one calls for each workgroup that the kernel would have had.
//! Arrays in workgroup memory are shared, as no two kernels run at the same time. Tensors that only these kernels use lie behind one
//! another in one buffer for each type, and every access adds its tensor's offset.

use super::EmittedKernel;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use wgfc_ir::DType;
use wgfc_ir::program::Access;

/// The place of a tensor that a linked kernel binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// The buffer of this number, which some of the kernels may write.
    Buffer(usize),
    /// The buffer of this number, which nothing writes.
    Constant(usize),
    /// A tensor that only these kernels use: its number, and its size in bytes.
    Within(usize, u64),
}

/// A binding of a linked kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// A buffer by its number.
    Buffer(usize),
    /// Tensors that only these kernels use: so many elements of this type.
    Within(DType, u64),
}

/// A kernel before it is linked.
pub struct Part<'a> {
    /// The kernel.
    pub kernel: &'a EmittedKernel,
    /// The place of the tensor at each binding.
    pub places: Vec<Place>,
    /// The numbers of its workgroups.
    pub workgroups: [u32; 3],
}

/// A linked kernel, in whose [`bindings`](EmittedKernel::bindings) are positions in the list beside it.
pub struct Linked {
    /// The kernel.
    pub kernel: EmittedKernel,
    /// The buffers that it binds.
    pub bindings: Vec<Bound>,
}

/// Elements between the starts of two tensors in one buffer, so that vectors of 4 start at multiples of 4.
const ALIGNMENT: u64 = 4;

/// Links kernels. All must have workgroups of the same size.
///
/// # Errors
/// The reason for which these kernels cannot be linked.
pub fn link(parts: &[Part]) -> Result<Linked, String> {
    let first = parts.first().ok_or("no kernels")?.kernel;
    let size = first.workgroup_size;
    if parts.iter().any(|p| p.kernel.workgroup_size != size) {
        return Err("workgroups of several sizes".into());
    }
    let texts: Vec<Vec<&str>> = parts.iter().map(|p| tokens(&p.kernel.wgsl)).collect();
    let modules = texts.iter().map(|t| items(t)).collect::<Result<Vec<_>, _>>()?;
    if let Some(name) = texts.iter().zip(&modules).find_map(|(t, m)| changed_private(t, m)) {
        // The next kernel would not find the variable's initial value.
        return Err(format!("the private variable `{name}` changes"));
    }
    let memory = Memory::new(parts, &modules)?;
    let mut out = Text::default();
    let mut calls = String::new();
    let mut builtins = BTreeSet::new();
    for (i, (part, module)) in parts.iter().zip(&modules).enumerate() {
        let (entry, taken) = out.add(i, module, &part.places, &memory)?;
        builtins.extend(taken.iter().copied().filter(|b| *b >= OF_A_WORKGROUP));
        calls.push_str(&call(&entry, &taken, part.workgroups));
        if i + 1 < parts.len() {
            calls.push_str("    storageBarrier();\n    workgroupBarrier();\n");
        }
    }
    let arguments = builtins
        .iter()
        .map(|b| format!("    @builtin({}) {}: {},\n", BUILTINS[*b].0, BUILTINS[*b].1, BUILTINS[*b].2));
    let arguments: String = arguments.collect();
    let dims = out.dims.is_some();
    let mut wgsl: String = out.directives.iter().map(|d| format!("{d}\n")).collect();
    let _ = writeln!(wgsl, "// {} kernels, which one workgroup runs one after another.", parts.len());
    let bindings = memory.declare(&mut wgsl);
    if let Some(text) = &out.dims {
        let _ = writeln!(wgsl, "@group(0) @binding({}) {text}", bindings.len());
    }
    for (ty, (_, most)) in &out.arrays {
        for (i, n) in most.iter().enumerate() {
            let _ = writeln!(wgsl, "var<workgroup> {}: array<{ty}, {n}>;", array_name(ty, i));
        }
    }
    wgsl.push_str(&out.text);
    let _ = write!(
        wgsl,
        "\n@compute @workgroup_size({}, {}, {})\nfn main(\n{arguments}) {{\n{calls}}}\n",
        size[0], size[1], size[2]
    );
    let mut features: Vec<String> = vec![];
    for f in parts.iter().flat_map(|p| &p.kernel.features) {
        if !features.contains(f) {
            features.push(f.clone());
        }
    }
    let bytes = out.arrays.iter().flat_map(|(ty, (bytes, most))| most.iter().map(move |n| (ty, bytes * n)));
    let kernel = EmittedKernel {
        family: "sequence",
        wgsl,
        workgroup_size: size,
        bindings: bindings.iter().enumerate().map(|(i, b)| (i, b.1)).collect(),
        uses_dims: dims,
        workgroup_bytes: bytes.map(|b| b.1 as u32).sum(),
        features,
        subgroup_size: parts.iter().find_map(|p| p.kernel.subgroup_size),
        workgroups: [1, 1, 1].map(wgfc_ir::Dim::constant),
    };
    Ok(Linked { kernel, bindings: bindings.into_iter().map(|b| b.0).collect() })
}

/// The call of a kernel for each of its workgroups.
fn call(entry: &str, taken: &[usize], [x, y, z]: [u32; 3]) -> String {
    let count = u64::from(x) * u64::from(y) * u64::from(z);
    let (group, groups) = if count == 1 {
        ("vec3<u32>(0u, 0u, 0u)".to_owned(), "vec3<u32>(1u, 1u, 1u)".to_owned())
    } else {
        let group = match [x, y, z] {
            [_, 1, 1] => "vec3<u32>(g, 0u, 0u)".to_owned(),
            _ => format!("vec3<u32>(g % {x}u, g / {x}u % {y}u, g / {}u)", u64::from(x) * u64::from(y)),
        };
        (group, format!("vec3<u32>({x}u, {y}u, {z}u)"))
    };
    let argument = |b: &usize| match BUILTINS[*b].1 {
        "group" => group.clone(),
        "groups" => groups.clone(),
        name => name.to_owned(),
    };
    let arguments: Vec<String> = taken.iter().map(argument).collect();
    let call = format!("{entry}({});", arguments.join(", "));
    if count == 1 {
        return format!("    {call}\n");
    }
    format!(
        "    for (var g = 0u; g < {count}u; g++) {{\n        {call}\n        workgroupBarrier();\n    }}\n"
    )
}

/// A declaration of a module.
struct Item<'t> {
    kind: Kind,
    /// The name that it declares; empty for a directive.
    name: &'t str,
    tokens: &'t [&'t str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Directive,
    Binding(usize),
    Uniform,
    Workgroup,
    Entry,
    Other,
}

/// The elements of a buffer: vectors of so many of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct View<'t> {
    scalar: &'t str,
    width: u64,
    atomic: bool,
}

impl<'t> View<'t> {
    /// The view that `array<…>` declares.
    fn of(declared: &[&'t str]) -> Option<View<'t>> {
        let view = |scalar, width, atomic| Some(View { scalar, width, atomic });
        match declared {
            [scalar @ ("f32" | "i32" | "u32" | "f16")] => view(scalar, 1, false),
            ["atomic", "<", scalar @ ("i32" | "u32"), ">"] => view(scalar, 1, true),
            [vector, "<", scalar @ ("f32" | "i32" | "u32" | "f16"), ">"] => {
                view(scalar, vector.strip_prefix("vec")?.parse().ok()?, false)
            }
            _ => None,
        }
    }

    /// The view of the same elements one by one.
    fn single(self) -> View<'t> {
        View { width: 1, ..self }
    }

    fn dtype(self) -> DType {
        match self.scalar {
            "f32" => DType::F32,
            "i32" => DType::I32,
            "f16" => DType::F16,
            _ => DType::U32,
        }
    }
}

impl std::fmt::Display for View<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let View { scalar, width, atomic } = self;
        match (width, atomic) {
            (1, false) => f.write_str(scalar),
            (_, true) => write!(f, "atomic<{scalar}>"),
            _ => write!(f, "vec{width}<{scalar}>"),
        }
    }
}

/// The tokens of `array<…>` in the declaration of a variable.
fn element<'i, 't>(item: &'i Item<'t>) -> Option<&'i [&'t str]> {
    let at = item.tokens.iter().position(|t| *t == "array")?;
    let end = item.tokens.iter().rposition(|t| *t == ">")?;
    item.tokens.get(at + 2..end)
}

fn is_code(token: &str) -> bool {
    !token.starts_with("//") && !token.trim().is_empty()
}

/// The words, numbers, comments, spaces and other characters of a text.
fn tokens(text: &str) -> Vec<&str> {
    let mut out = vec![];
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let until = |f: &dyn Fn(char) -> bool| rest.find(f).unwrap_or(rest.len());
        let len = if rest.starts_with("//") {
            until(&|c| c == '\n')
        } else if c.is_whitespace() {
            until(&|c: char| !c.is_whitespace())
        } else if c.is_ascii_digit() {
            let hex = rest.starts_with("0x");
            let mut before = c;
            let end = rest.char_indices().find(|(_, c)| {
                let exponent = if hex { matches!(before, 'p' | 'P') } else { matches!(before, 'e' | 'E') };
                let part = word(*c) || *c == '.' || (matches!(c, '+' | '-') && exponent);
                before = *c;
                !part
            });
            end.map_or(rest.len(), |e| e.0)
        } else if word(c) {
            until(&|c: char| !word(c))
        } else {
            c.len_utf8()
        };
        let (token, behind) = rest.split_at(len);
        out.push(token);
        rest = behind;
    }
    out
}

/// The declarations of a module. Comments between them are left out.
fn items<'t>(tokens: &'t [&'t str]) -> Result<Vec<Item<'t>>, String> {
    let mut out = vec![];
    let mut at = 0;
    while let Some(skipped) = tokens[at..].iter().position(|t| is_code(t)) {
        let start = at + skipped;
        let mut depth = 0;
        let end = tokens[start..].iter().position(|t| {
            match *t {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                _ => {}
            }
            depth == 0 && (*t == ";" || *t == "}")
        });
        at = start + end.ok_or("a declaration without an end")? + 1;
        out.push(item(&tokens[start..at])?);
    }
    Ok(out)
}

fn item<'t>(tokens: &'t [&'t str]) -> Result<Item<'t>, String> {
    let code: Vec<&str> = tokens.iter().copied().filter(|t| is_code(t)).collect();
    let keyword =
        code.iter().position(|t| matches!(*t, "var" | "fn" | "struct" | "const" | "alias" | "override"));
    let refused = || format!("a declaration of another kind: {}", code.concat());
    let Some(keyword) = keyword else {
        let directive = matches!(code.first(), Some(&("enable" | "requires" | "diagnostic")));
        return directive.then_some(Item { kind: Kind::Directive, name: "", tokens }).ok_or_else(refused);
    };
    let (kind, name) = match code.get(keyword..).unwrap_or_default() {
        ["var", "<", "storage", ..] => {
            let name = code[keyword..].iter().position(|t| *t == ">").and_then(|e| code.get(keyword + e + 1));
            let at = code.iter().position(|t| *t == "binding").and_then(|b| code.get(b + 2)?.parse().ok());
            (Kind::Binding(at.ok_or_else(refused)?), name)
        }
        ["var", "<", "uniform", ">", name, ..] => (Kind::Uniform, Some(name)),
        ["var", "<", "workgroup", ">", name, ..] => (Kind::Workgroup, Some(name)),
        ["var", "<", "private", ">", name, ..] => (Kind::Other, Some(name)),
        ["fn", name, ..] if code[..keyword].contains(&"compute") => (Kind::Entry, Some(name)),
        ["fn" | "struct" | "const" | "alias", name, ..] => (Kind::Other, Some(name)),
        _ => return Err(refused()),
    };
    Ok(Item { kind, name: name.ok_or_else(refused)?, tokens })
}

/// A private variable of a module to which something is assigned.
fn changed_private<'t>(tokens: &[&'t str], module: &[Item<'t>]) -> Option<&'t str> {
    let code: Vec<&str> = tokens.iter().copied().filter(|t| is_code(t)).collect();
    let private = module.iter().filter(|i| i.tokens.contains(&"private")).map(|i| i.name);
    let assigned = |name: &str| code.windows(3).any(|w| w[0] == name && w[1] == "=" && w[2] != "=");
    private.into_iter().find(|name| assigned(name))
}

/// The buffers of a linked kernel.
struct Memory<'t> {
    buffers: BTreeMap<Place, Buffer<'t>>,
    /// The number and the views of constants: each view is a binding.
    constants: Vec<(usize, View<'t>)>,
    /// The types of tensors that only these kernels use, and how many elements all of a type have.
    within: Vec<(View<'t>, u64)>,
}

/// A buffer that kernels of a sequence write.
struct Buffer<'t> {
    view: View<'t>,
    access: Access,
    /// The first element of the tensor.
    offset: u64,
}

/// The variable that holds a tensor, and how it is accessed there.
struct Accessed<'t> {
    variable: String,
    /// The tensor's own view.
    view: View<'t>,
    /// The view of the variable.
    of: View<'t>,
    offset: u64,
}

impl<'t> Memory<'t> {
    fn new(parts: &[Part], modules: &[Vec<Item<'t>>]) -> Result<Memory<'t>, String> {
        let mut memory = Memory { buffers: BTreeMap::new(), constants: vec![], within: vec![] };
        for (part, module) in parts.iter().zip(modules) {
            for item in module {
                let Kind::Binding(i) = item.kind else { continue };
                let refused = || format!("`{}` is not an array of numbers", item.tokens.concat());
                let view = element(item).and_then(View::of).ok_or_else(refused)?;
                let place = *part.places.get(i).ok_or_else(refused)?;
                let access = part.kernel.bindings.get(i).ok_or_else(refused)?.1;
                memory.add(place, view, access)?;
            }
        }
        for (place, buffer) in &mut memory.buffers {
            let Place::Within(_, bytes) = place else { continue };
            let view = buffer.view.single();
            let at = memory.within.iter().position(|w| w.0 == view).unwrap_or_else(|| {
                memory.within.push((view, 0));
                memory.within.len() - 1
            });
            buffer.view = view;
            buffer.offset = memory.within[at].1;
            memory.within[at].1 +=
                (bytes * 8).div_ceil(view.dtype().bits() as u64).next_multiple_of(ALIGNMENT);
        }
        Ok(memory)
    }

    fn add(&mut self, place: Place, view: View<'t>, access: Access) -> Result<(), String> {
        if let Place::Constant(n) = place {
            if !self.constants.contains(&(n, view)) {
                self.constants.push((n, view));
            }
            return Ok(());
        }
        let known = self.buffers.entry(place).or_insert(Buffer { view, access, offset: 0 });
        if known.view.scalar != view.scalar {
            return Err(format!("a tensor is an array of {} and of {view}", known.view));
        }
        // Accesses of several widths are accesses to single elements; if one is atomic, all are.
        if known.view != view {
            let atomic = known.view.atomic || view.atomic;
            known.view = View { width: 1, atomic, ..view };
        }
        if access == Access::ReadWrite {
            known.access = access;
        }
        Ok(())
    }

    /// Writes the declarations, and returns what each binds.
    fn declare(&self, out: &mut String) -> Vec<(Bound, Access)> {
        let mut bindings = vec![];
        let mut write = |name: String, view: View, access: Access, bound: Bound| {
            let mode = if access == Access::Read { "read" } else { "read_write" };
            let at = bindings.len();
            let _ = writeln!(out, "@group(0) @binding({at}) var<storage, {mode}> {name}: array<{view}>;");
            bindings.push((bound, access));
        };
        for (n, view) in &self.constants {
            write(constant_name(*n, *view), *view, Access::Read, Bound::Buffer(*n));
        }
        for (place, buffer) in &self.buffers {
            if let Place::Buffer(n) = place {
                write(format!("buffer{n}"), buffer.view, buffer.access, Bound::Buffer(*n));
            }
        }
        for (view, elements) in &self.within {
            write(within_name(*view), *view, Access::ReadWrite, Bound::Within(view.dtype(), *elements));
        }
        bindings
    }

    fn access(&self, place: Place, view: View<'t>) -> Result<Accessed<'t>, String> {
        if let Place::Constant(n) = place {
            return Ok(Accessed { variable: constant_name(n, view), view, of: view, offset: 0 });
        }
        let buffer = self.buffers.get(&place).ok_or("a tensor without a place")?;
        let variable = match place {
            Place::Within(..) => within_name(buffer.view),
            Place::Buffer(n) | Place::Constant(n) => format!("buffer{n}"),
        };
        Ok(Accessed { variable, view, of: buffer.view, offset: buffer.offset })
    }
}

impl Accessed<'_> {
    /// The place of the first element of `index`.
    fn start(&self, index: &str) -> String {
        let times = self.view.width / self.of.width;
        match (self.offset, times) {
            (0, 1) => index.to_owned(),
            (n, 1) => format!("{n} + i32({index})"),
            (0, w) => format!("{w} * i32({index})"),
            (n, w) => format!("{n} + {w} * i32({index})"),
        }
    }

    /// Whether the variable has the tensor's elements as the tensor has them.
    fn is_plain(&self) -> bool {
        self.view.width == self.of.width && self.view.atomic == self.of.atomic
    }

    fn read(&self, at: &str) -> String {
        let variable = &self.variable;
        if self.of.atomic { format!("atomicLoad(&{variable}[{at}])") } else { format!("{variable}[{at}]") }
    }

    fn write(&self, at: &str, value: &str) -> String {
        let variable = &self.variable;
        if self.of.atomic {
            format!("atomicStore(&{variable}[{at}], {value});")
        } else {
            format!("{variable}[{at}] = {value};")
        }
    }
}

fn within_name(view: View) -> String {
    format!("within{}_{}", if view.atomic { "_atomic" } else { "" }, view.scalar)
}

fn constant_name(n: usize, view: View) -> String {
    format!("constant{n}_{}x{}", view.scalar, view.width)
}

fn array_name(ty: &str, i: usize) -> String {
    let word: String = ty.chars().filter(char::is_ascii_alphanumeric).collect();
    format!("shared_{word}_{i}")
}

/// The text of a linked kernel under way.
#[derive(Default)]
struct Text<'t> {
    directives: Vec<String>,
    dims: Option<String>,
    /// For each type of elements their bytes, and the lengths of the arrays in workgroup memory.
    arrays: BTreeMap<String, (u64, Vec<u64>)>,
    text: String,
    /// The text of each name that is declared.
    declared: FxHashMap<&'t str, String>,
}

impl<'t> Text<'t> {
    /// Adds the declarations of module number `m`, and returns the name of its entry point.
    fn add(
        &mut self,
        m: usize,
        module: &'t [Item<'t>],
        places: &[Place],
        memory: &Memory<'t>,
    ) -> Result<(String, Vec<usize>), String> {
        let mut taken = vec![];
        let mut names: FxHashMap<&str, String> = FxHashMap::default();
        let mut accesses: FxHashMap<&str, Accessed<'t>> = FxHashMap::default();
        let mut own: FxHashSet<&str> = FxHashSet::default();
        let mut used: BTreeMap<String, usize> = BTreeMap::new();
        for item in module {
            match item.kind {
                Kind::Directive => {
                    let text = item.tokens.concat();
                    if !self.directives.contains(&text) {
                        self.directives.push(text);
                    }
                }
                Kind::Binding(i) => {
                    let view = element(item).and_then(View::of).ok_or("a binding that is no array")?;
                    accesses.insert(item.name, memory.access(places[i], view)?);
                    own.insert(item.name);
                }
                Kind::Workgroup => {
                    let name = self.array(item, &mut used)?;
                    names.insert(item.name, name);
                    own.insert(item.name);
                }
                Kind::Uniform => {
                    let from = item.tokens.iter().position(|t| *t == "var").unwrap_or(0);
                    self.dims = Some(item.tokens[from..].concat());
                }
                Kind::Entry => {
                    names.insert(item.name, format!("kernel{m}"));
                }
                Kind::Other => {}
            }
        }
        // Declarations that use a name of the module's own are its own too, wherever that name is declared.
        let others = || module.iter().filter(|i| i.kind == Kind::Other);
        while let Some(item) = others().find(|i| !own.contains(i.name) && self.is_own(i, &own)) {
            own.insert(item.name);
            names.insert(item.name, format!("{}_{m}", item.name));
        }
        for item in module.iter().filter(|i| matches!(i.kind, Kind::Other | Kind::Entry)) {
            if item.kind == Kind::Other && !own.contains(item.name) {
                if self.declared.contains_key(item.name) {
                    continue;
                }
                self.declared.insert(item.name, item.tokens.concat());
            }
            let mut text = rewritten(item.tokens, &names, &accesses)?;
            if item.kind == Kind::Entry {
                (text, taken) = function(&text)?;
            }
            self.text.push('\n');
            self.text.push_str(&text);
            self.text.push('\n');
        }
        Ok((format!("kernel{m}"), taken))
    }

    /// Whether a declaration is not that which earlier modules have by this name, or uses one of the module's `own` names.
    fn is_own(&self, item: &Item<'t>, own: &FxHashSet<&str>) -> bool {
        let known = self.declared.get(item.name);
        known.is_some_and(|text| *text != item.tokens.concat()) || item.tokens.iter().any(|t| own.contains(t))
    }

    /// The name of an array in workgroup memory, which modules share.
    fn array(&mut self, item: &Item<'t>, used: &mut BTreeMap<String, usize>) -> Result<String, String> {
        let refused = || format!("`{}` is not an array", item.tokens.concat());
        let inside: Vec<&str> =
            element(item).ok_or_else(refused)?.iter().copied().filter(|t| is_code(t)).collect();
        let comma = inside.iter().rposition(|t| *t == ",").ok_or_else(refused)?;
        let (ty, len) = (inside[..comma].concat(), inside[comma + 1..].concat());
        let len: u64 = len.trim_end_matches('u').parse().map_err(|_| refused())?;
        let scalar = if ty.contains("f16") { 2 } else { 4 };
        let width = ty.strip_prefix("vec").and_then(|v| v[..1].parse::<u64>().ok());
        if ty.contains("array")
            || ty.contains("mat")
            || (width.is_none() && !["f32", "i32", "u32", "f16", "bool"].contains(&&*ty))
        {
            return Err(refused());
        }
        // An array of three is as far apart as one of four.
        let bytes = scalar * width.map_or(1, u64::next_power_of_two);
        let i = used.entry(ty.clone()).or_insert(0);
        let most = &mut self.arrays.entry(ty.clone()).or_insert((bytes, vec![])).1;
        match most.get_mut(*i) {
            Some(n) => *n = (*n).max(len),
            None => most.push(len),
        }
        *i += 1;
        Ok(array_name(&ty, *i - 1))
    }
}

/// The position behind the bracket that closes the one at `open`.
fn closing(tokens: &[&str], open: usize) -> Result<usize, String> {
    let mut depth = 0;
    for (i, t) in tokens.iter().enumerate().skip(open) {
        match *t {
            "[" | "(" | "{" => depth += 1,
            "]" | ")" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Ok(i);
        }
    }
    Err("a bracket without an end".into())
}

/// Tokens with other names, and accesses to tensors where these lie.
fn rewritten(
    tokens: &[&str],
    names: &FxHashMap<&str, String>,
    accesses: &FxHashMap<&str, Accessed>,
) -> Result<String, String> {
    let mut out = String::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let member = out.ends_with('.');
        let Some(access) = accesses.get(token).filter(|_| !member) else {
            out.push_str(names.get(token).filter(|_| !member).map_or(token, String::as_str));
            at += 1;
            continue;
        };
        let refused = || format!("an access to `{token}` of another kind");
        if tokens.get(at + 1) != Some(&"[") {
            return Err(refused());
        }
        let end = closing(tokens, at + 1)?;
        let index = rewritten(&tokens[at + 2..end], names, accesses)?;
        let start = access.start(&index);
        at = end + 1;
        if access.is_plain() {
            let _ = write!(out, "{}[{start}]", access.variable);
            continue;
        }
        if out.trim_end().ends_with('&') {
            return Err(refused());
        }
        let component = match (tokens.get(at), tokens.get(at + 1)) {
            (Some(&"."), Some(c @ &("x" | "y" | "z" | "w"))) => "xyzw".find(*c),
            _ => None,
        };
        if component.is_some() {
            at += 2;
        }
        let width = component.map_or(access.view.width, |_| 1);
        let element = |i: u64| match component.map_or(i, |c| c as u64) {
            0 => start.clone(),
            i => format!("{start} + {i}"),
        };
        let next = (at..tokens.len()).find(|i| is_code(tokens[*i])).unwrap_or(tokens.len());
        let [first, second] = [next, next + 1].map(|i| tokens.get(i).copied().unwrap_or_default());
        if second == "=" && matches!(first, "+" | "-" | "*" | "/" | "%" | "|" | "&" | "^") {
            return Err(refused());
        }
        if first != "=" || second == "=" {
            let all: Vec<String> = (0..width).map(|i| access.read(&element(i))).collect();
            match width {
                1 => out.push_str(&all.concat()),
                n => out.push_str(&format!("vec{n}<{}>({})", access.view.scalar, all.join(", "))),
            }
            continue;
        }
        let end = statement_end(tokens, next).ok_or_else(refused)?;
        let value = rewritten(&tokens[next + 1..end], names, accesses)?;
        at = end + 1;
        if width == 1 {
            out.push_str(&access.write(&element(0), value.trim()));
            continue;
        }
        let _ = write!(out, "{{ let stored_value = {}; let stored_at = {start};", value.trim());
        for (i, c) in "xyzw".chars().take(width as usize).enumerate() {
            let _ =
                write!(out, " {}", access.write(&format!("stored_at + {i}"), &format!("stored_value.{c}")));
        }
        out.push_str(" }");
    }
    Ok(out)
}

/// The semicolon that ends a statement.
fn statement_end(tokens: &[&str], from: usize) -> Option<usize> {
    let mut depth = 0;
    (from..tokens.len()).find(|i| {
        match tokens[*i] {
            "(" | "[" => depth += 1,
            ")" | "]" => depth -= 1,
            _ => {}
        }
        tokens[*i] == ";" && depth == 0
    })
}

/// The built-in values that entry points take, with their names and types there. Those of the workgroup come first.
const BUILTINS: [(&str, &str, &str); 5] = [
    ("workgroup_id", "group", "vec3<u32>"),
    ("num_workgroups", "groups", "vec3<u32>"),
    ("local_invocation_index", "local", "u32"),
    ("subgroup_id", "subgroup", "u32"),
    ("subgroup_invocation_id", "invocation", "u32"),
];

/// The number of built-in values that all invocations of a workgroup share.
const OF_A_WORKGROUP: usize = 2;

/// The function of an entry point, which takes as arguments what the entry point takes as built-in values, and which of these it takes.
fn function(text: &str) -> Result<(String, Vec<usize>), String> {
    let refused = || String::from("an entry point of another form");
    let start = text.find("fn ").ok_or_else(refused)?;
    let open = start + text[start..].find('(').ok_or_else(refused)?;
    let body = open + text[open..].find('{').ok_or_else(refused)?;
    let mut taken = vec![];
    for part in text[open..body].split("@builtin(").skip(1) {
        let (builtin, rest) = part.split_once(')').ok_or_else(refused)?;
        let name = rest.trim_start().split(':').next().unwrap_or_default();
        let known = BUILTINS.iter().position(|b| b.0 == builtin && b.1 == name);
        taken.push(known.ok_or_else(|| format!("an entry point with `{builtin}` as `{name}`"))?);
    }
    let arguments: Vec<String> =
        taken.iter().map(|b| format!("{}: {}", BUILTINS[*b].1, BUILTINS[*b].2)).collect();
    Ok((format!("{}({}) {}", &text[start..open], arguments.join(", "), &text[body..]), taken))
}

#[cfg(test)]
mod tests;
