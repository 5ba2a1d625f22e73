//! The `Matmul` family: products of matrices and, through their index maps, convolutions.
//!
//! The templates know rows and columns. Columns are whichever of `m` and `n` lies along memory in the
//! result, so that neighbouring threads store neighbours; the operand over the rows is `x`, the other
//! `y`. What an operand's load needs is split three ways, and each part is computed as rarely as it
//! can be: what depends on the line (row or column) once a line, on `k` once a `k`, on both at each
//! element. An im2col load is then two additions and its guard.

use super::handle::Handle;
use super::wgsl::{Module, Scope, reg_type};
use super::{
    EmitContext, EmittedKernel, cooperative, fold_workgroups, integer_tiles, template_error, thin, window,
};
use crate::Diagnostic;
use crate::kernel::bindings::Bindings;
use crate::kernel::dependence::var_bit;
use crate::kernel::substitute::{K, hoistable, moved_stores, substitute};
use crate::kernel::{Body, Expr, ExprId, Family, Kernel, Matmul, Store};
use crate::schedule::products::problem::{self, Side, four, four_stores, operands, sides};
use crate::schedule::products::{self, Contiguous, Product};
use rustc_hash::FxHashSet;
use std::fmt::Write;
use wgfc_codegen_templates::matmul::{Access, Extents, Tile, Tiled};
use wgfc_codegen_templates::untiled::{Block, BlockOfVectors};
use wgfc_ir::{Dim, Poly, Reg};

/// Writes a product as its schedule says.
pub(super) fn emit(
    kernel: &Kernel,
    schedule: &Product,
    cx: &EmitContext,
) -> Result<EmittedKernel, Diagnostic> {
    let Some((x, y)) = sides(kernel) else {
        return Err(Diagnostic::internal("not a matmul kernel"));
    };
    let single = matches!(&kernel.family, Family::Matmul(k) if k.b.len() == 1 && k.sums.is_empty());
    match schedule {
        Product::Thin(s) => {
            let o = operands(kernel, x, y).ok_or_else(|| Diagnostic::internal("not a matmul kernel"))?;
            return thin::emit(kernel, &o, cx, s);
        }
        _ if !single => {
            return Err(Diagnostic::internal(
                "several products and sums, of which only thin and serial schedules make more than one",
            ));
        }
        Product::Cooperative(s) => return cooperative::emit(kernel, [x, y], cx, s),
        Product::TiledIntegers(s) => return integer_tiles::emit(kernel, [x, y], cx, s),
        Product::Window(s) => return window::emit(kernel, [x, y], cx, s),
        Product::Tiled(_) | Product::Block(_) | Product::Serial(_) => {}
    }
    let divides = |d: &Dim, by: u32| d.as_const().is_some_and(|d| d > 0 && d % i64::from(by) == 0);
    let fours = match schedule {
        Product::Tiled(t) => problem::fours(kernel, &x, &y, t.shape),
        Product::Block(products::Block { width: 4, .. }) => problem::block_fours(kernel, &x, &y)
            .ok_or_else(|| Diagnostic::internal(format!("{schedule:?} of what is no vectors")))?,
        _ => [false, false],
    };
    // Where a tile's depth divides all of it.
    let blocks = |i: usize, side: &Side<'_>| match (schedule, &kernel.family) {
        (Product::Tiled(t), Family::Matmul(Matmul { k, .. })) if !fours[i] => {
            let whole = divides(k, t.shape.k);
            whole.then(|| problem::blocked(kernel, side, t.shape.k)).flatten()
        }
        _ => None,
    };
    let blocks = [blocks(0, &x), blocks(1, &y)];
    let blocked = blocks.each_ref().map(Option::is_some);
    let rolled = problem::stores_are_long(kernel, schedule.results_of_invocation());
    let vectors = fours[1] && !rolled;
    let (kernel, [xs, ys], wide_stores) = &operands_and_stores(kernel, [&x, &y], fours, vectors, blocks, cx)?;
    let Family::Matmul(Matmul { batch, k, .. }) = &kernel.family else {
        return Err(Diagnostic::internal("not a matmul kernel"));
    };
    let (rows, cols) = (x.extent, y.extent);

    let wide: Vec<ExprId> = [xs, ys].into_iter().filter(|ids| ids.len() > 1).flatten().copied().collect();
    let mut module = module_of(kernel, cx, &wide, *wide_stores)?;
    let mut top = Scope::new(4);
    let mut functions = String::new();
    let extents = Extents {
        batch: module.extent(&mut top, batch)?,
        rows: module.extent(&mut top, rows)?,
        cols: module.extent(&mut top, cols)?,
        depth: depth(&mut module, &mut top, &mut functions, k)?,
    };
    for (name, ids, side, blocked) in [("x", xs, &x, blocked[0]), ("y", ys, &y, blocked[1])] {
        if blocked {
            let root = ids.first().copied().unwrap_or(0);
            blocked_operand(&mut module, &mut functions, name, root, side.var)?;
        } else {
            operand(&mut module, &mut functions, name, ids, side.var, K)?;
        }
    }
    let mut body = Scope::new(4);
    let result = store_results(&mut module, &mut body, *wide_stores)?;
    let _ = writeln!(
        functions,
        "fn store(v0: i32, v{}: i32, v{}: i32, {result}) {{\n{}}}",
        x.var, y.var, body.text
    );
    let preamble = format!("{}\n{functions}", module.preamble());
    let setup = top.text;

    let (wgsl, threads, bytes, groups) = match schedule {
        Product::Tiled(s) => {
            let products::Tiled { shape, buffers, unroll, rows_first } = *s;
            let products::TileShape { rows: r, cols: c, k: depth, thread_rows, thread_cols, split } = shape;
            let t = Tiled {
                preamble,
                setup,
                extents,
                tile: Tile { rows: r, cols: c, k: depth, thread_rows, thread_cols, split },
                x: access(&x, fours[0], blocked[0]),
                y: access(&y, fours[1], blocked[1]),
                whole_rows: divides(rows, shape.rows),
                whole_cols: divides(cols, shape.cols),
                whole_depth: divides(k, shape.k * shape.split),
                rows_first,
                buffers,
                tile_len: shape.workgroup_bytes(buffers) / 16,
                unroll,
                store_vectors: *wide_stores,
                rolled,
            };
            let tiles = &rows.ceil_div(i64::from(shape.rows)) * &cols.ceil_div(i64::from(shape.cols));
            (t.render(), shape.threads(), shape.workgroup_bytes(buffers), &tiles * batch)
        }
        Product::Block(products::Block { threads, rows: block_rows, cols: block_cols, width }) => {
            let (threads, block) = (*threads, [*block_rows, *block_cols]);
            let fits = *width == 1 || (*width == 4 && block.iter().all(|n| n.is_multiple_of(4)));
            if block.contains(&0) || threads == 0 || !fits {
                return Err(Diagnostic::internal(format!("{schedule:?} has no results")));
            }
            let whole = [divides(rows, block[0]), divides(cols, block[1])];
            let wgsl = if *width == 1 {
                Block { preamble, setup, extents, threads, block, whole, rolled }.render()
            } else {
                let x = access(&x, fours[0], false);
                let store_vectors = *wide_stores;
                let slots = BlockOfVectors {
                    preamble,
                    setup,
                    extents,
                    threads,
                    block,
                    whole,
                    x,
                    store_vectors,
                    rolled,
                };
                slots.render()
            };
            let blocks = &rows.ceil_div(i64::from(block[0])) * &cols.ceil_div(i64::from(block[1]));
            (wgsl, threads, 0, (&blocks * batch).ceil_div(i64::from(threads)))
        }
        Product::Thin(_)
        | Product::Cooperative(_)
        | Product::TiledIntegers(_)
        | Product::Window(_)
        | Product::Serial(_) => {
            return Err(Diagnostic::internal("a schedule of another template"));
        }
    };
    let wgsl = wgsl.map_err(template_error)?;
    let groups = fold_workgroups(&groups, cx.target.max_workgroups);
    Ok(module.finish("matmul", wgsl, [threads, 1, 1], bytes, groups))
}

/// The number of terms of a sum, and the function that it calls: none where no store [needs](needed) the sums of a batch.
pub(super) fn depth(
    m: &mut Module,
    top: &mut Scope,
    functions: &mut String,
    k: &Dim,
) -> Result<String, Diagnostic> {
    let depth = m.extent(top, k)?;
    let Some(condition) = needed(m) else { return Ok(depth) };
    functions.push_str(&m.function("needed", &[0], condition)?);
    Ok(format!("select(0, {depth}, needed(batch))"))
}

/// The condition, the same for all results of a batch, under which alone the stored values depend on sums.
fn needed(m: &Module) -> Option<ExprId> {
    let body = &m.kernel.body;
    let of_batch = |c: ExprId| m.deps(c) & !var_bit(0) == 0;
    let mut condition = None;
    let mut stack: Vec<ExprId> = m.kernel.stores.iter().flat_map(Store::reads).collect();
    let mut seen: FxHashSet<ExprId> = FxHashSet::default();
    while let Some(e) = stack.pop() {
        if !seen.insert(e) {
            continue;
        }
        match *body.expr(e) {
            Expr::Acc(_) => return None,
            Expr::Select(c, _, otherwise) if of_batch(c) && condition.is_none_or(|own| own == c) => {
                condition = Some(c);
                stack.push(otherwise);
            }
            _ => stack.extend(body.operands(e)),
        }
    }
    condition.filter(|c| m.deps(*c) == var_bit(0))
}

/// How the template reads an operand.
fn access(side: &Side<'_>, vectors: bool, blocks: bool) -> Access {
    Access { along_depth: side.order == Contiguous::Depth, vectors, blocks }
}

/// The kernel with operands as they are read, one by one or by fours, their expressions, and whether its stores are
/// fours of columns, which they are where that is wanted and possible.
fn operands_and_stores(
    kernel: &Kernel,
    sides: [&Side<'_>; 2],
    fours: [bool; 2],
    vectors: bool,
    blocks: [Option<(Body, ExprId)>; 2],
    cx: &EmitContext,
) -> Result<(Kernel, [Vec<ExprId>; 2], bool), Diagnostic> {
    let plain = hoistable(kernel, K);
    let Family::Matmul(Matmul { a, b, .. }) = &plain.family else {
        return Err(Diagnostic::internal("not a matmul kernel"));
    };
    let mut body = Body::default();
    let mut roots = [vec![], vec![]];
    // The first operand before the second, whichever is over the rows.
    for i in if sides[0].var == 1 { [0, 1] } else { [1, 0] } {
        let (side, roots) = (sides[i], &mut roots[i]);
        if let Some((of_block, root)) = &blocks[i] {
            let vars = [0, 1, 2, 3, 4].map(Poly::var);
            let ids = substitute(of_block, &mut body, &[*root], &vars, &kernel.domain());
            roots.push(ids.get(*root as usize).copied().flatten().unwrap_or(0));
        } else if fours[i] {
            let four = four(kernel, side, &mut body);
            roots.extend(four.ok_or_else(|| Diagnostic::internal("an operand cannot be read by fours"))?);
        } else {
            let root = if side.var == 1 { *a } else { b.first().copied().unwrap_or(0) };
            let vars = [0, 1, 2, 3].map(Poly::var);
            let ids = substitute(&plain.body, &mut body, &[root], &vars, &kernel.domain());
            roots.push(ids.get(root as usize).copied().flatten().unwrap_or(0));
        }
    }
    // An invocation has whole vectors of columns where those are read so.
    let stores = if vectors { vector_stores(kernel, sides[1], &mut body, cx)? } else { None };
    let moved = with_operands(kernel, body, stores.as_deref(), &roots.concat());
    Ok((moved, roots, stores.is_some()))
}

/// The kernel with a body of its operands written out, of which it needs the `roots`, and its stores there, which are vectors or moved.
pub(super) fn with_operands(
    kernel: &Kernel,
    body: Body,
    stores: Option<&[[Store; 4]]>,
    roots: &[ExprId],
) -> Kernel {
    let mut out = match stores {
        Some(stores) => Kernel { body, stores: stores.concat(), ..kernel.clone() },
        None => moved_stores(kernel, body),
    };
    if let Family::Matmul(Matmul { a, b, .. }) = &mut out.family {
        *a = roots.first().copied().unwrap_or(0);
        *b = roots.to_vec();
    }
    out
}

/// The module of a kernel of which `roots` are read in vectors where possible, and its stores where they are vectors.
pub(super) fn module_of<'a>(
    kernel: &'a Kernel,
    cx: &EmitContext<'a>,
    roots: &[ExprId],
    vectors: bool,
) -> Result<Module<'a>, Diagnostic> {
    let mut module = Module::new(kernel, cx)?;
    module.vectorise(roots);
    if vectors {
        let reads: Vec<ExprId> = kernel.stores.iter().flat_map(Store::reads).collect();
        module.vectorise(&reads);
        for s in &kernel.stores {
            module.bindings.declare_vectors(cx.graph, s.tensor, 4);
        }
    }
    Ok(module)
}

/// Writes the kernel's stores, of an element or of the four columns of a vector; gives the parameter that is stored.
pub(super) fn store_results(
    m: &mut Module,
    s: &mut Scope,
    vectors: bool,
) -> Result<&'static str, Diagnostic> {
    let stores = &m.kernel.stores;
    if !vectors {
        m.stores(s, stores)?;
        return Ok("acc0: f32");
    }
    for (i, lane) in ["x", "y", "z", "w"].iter().enumerate() {
        s.bind_acc(i as u32, &format!("acc.{lane}"));
    }
    m.read_ahead(s, stores.iter().flat_map(Store::reads))?;
    for four in stores.chunks(4) {
        m.store_neighbours(s, four)?;
    }
    Ok("acc: vec4<f32>")
}

/// The stores of four neighbouring columns together, where every tensor that is written can be declared so.
pub(super) fn vector_stores(
    kernel: &Kernel,
    cols: &Side<'_>,
    body: &mut Body,
    cx: &EmitContext,
) -> Result<Option<Vec<[Store; 4]>>, Diagnostic> {
    let mut bindings = Bindings::of(kernel, cx.graph, cx.target.f16, false)?;
    let mut declared = |t| bindings.declare_vectors(cx.graph, t, 4);
    Ok(four_stores(kernel, cols, body).filter(|s| s.iter().all(|four| declared(four[0].tensor))))
}

/// Writes `<name>_line`, `<name>_step`, `<name>_block` and `<name>_load` for an operand whose terms are `%4` of block `%3`.
fn blocked_operand(
    m: &mut Module,
    out: &mut String,
    name: &str,
    root: ExprId,
    line: usize,
) -> Result<(), Diagnostic> {
    let (on_line, on_step, on_term) = (var_bit(0) | var_bit(line), var_bit(K), var_bit(4));
    let body = &m.kernel.body;
    let deps = |m: &Module, id: ExprId| m.deps(id);
    let is_line = |m: &Module, id: ExprId| deps(m, id) & !on_line == 0;
    let is_step = |m: &Module, id: ExprId| deps(m, id) & !(on_step | var_bit(0)) == 0;
    let plain = |id: ExprId| matches!(body.expr(id), Expr::Const(_));
    // Values made before and used behind: of lines, of steps, of both.
    let (mut lines, mut steps, mut both) = (vec![], vec![], vec![]);
    let reachable = body.reachable(&[root]);
    for id in reachable.iter().copied().filter(|id| deps(m, *id) & on_term != 0) {
        both.extend(body.operands(id).into_iter().filter(|o| !plain(*o) && deps(m, *o) & on_term == 0));
    }
    // A value that is the same for all terms of a block is made with the block.
    if deps(m, root) & on_term == 0 && !plain(root) {
        both.push(root);
    }
    let mixed = |m: &Module, id: ExprId| deps(m, id) & on_term == 0 && !is_line(m, id) && !is_step(m, id);
    let of_both = reachable.iter().copied().filter(|id| mixed(m, *id)).flat_map(|id| body.operands(id));
    for id in of_both.chain(both.iter().copied()).filter(|id| !plain(*id)) {
        if is_line(m, id) {
            lines.push(id);
        } else if is_step(m, id) {
            steps.push(id);
        }
    }
    for list in [&mut lines, &mut steps, &mut both] {
        list.sort_unstable();
        list.dedup();
    }
    let upper = name.to_uppercase();
    let mut block = Scope::new(4);
    block.bind_var(0, "batch");
    block.bind_var(line, &format!("line.v{line}"));
    block.bind_var(K, &format!("step.v{K}"));
    for (part, var, ids) in [("line", line, &lines), ("step", K, &steps)] {
        let mut s = Scope::new(4);
        let (mut fields, mut values) = (format!("    v{var}: i32,\n"), vec![format!("v{var}")]);
        for (i, id) in ids.iter().enumerate() {
            let _ = writeln!(fields, "    p{i}: {},", reg_type(m.kernel.body.dtype(*id).reg()));
            values.push(m.value(&mut s, *id)?.to_string());
            block.bind(*id, Handle::inline(format!("{part}.p{i}")));
        }
        let ty = if part == "line" { format!("{upper}Line") } else { format!("{upper}Step") };
        let _ =
            writeln!(out, "struct {ty} {{\n{fields}}}\nfn {name}_{part}(v0: i32, v{var}: i32) -> {ty} {{");
        let _ = writeln!(out, "{}    return {ty}({});\n}}", s.text, values.join(", "));
    }
    let mut load = Scope::new(4);
    let (mut fields, mut values) = (String::new(), vec![]);
    for (i, id) in both.iter().enumerate() {
        let _ = writeln!(fields, "    p{i}: {},", reg_type(m.kernel.body.dtype(*id).reg()));
        values.push(m.value(&mut block, *id)?.to_string());
        load.bind(*id, Handle::inline(format!("block.p{i}")));
    }
    if both.is_empty() {
        fields += "    v3: i32,\n";
        values.push("step.v3".into());
    }
    let value = m.value(&mut load, root)?;
    let _ = writeln!(
        out,
        "struct {upper}Block {{\n{fields}}}\nfn {name}_block(batch: i32, line: {upper}Line, step: {upper}Step) -> {upper}Block {{\n{}    return {upper}Block({});\n}}\nfn {name}_load(block: {upper}Block, v4: i32) -> f32 {{\n{}    return {value};\n}}\n",
        block.text,
        values.join(", "),
        load.text
    );
    Ok(())
}

/// Writes `<name>_line`, `<name>_step` and `<name>_load` for an operand over variables `line` and `step`: what depends
/// only on one of them is made by the first two. Of four roots the last gives a vector, of eight two in an `Eight`, of f16 for
/// matrix units, of sixteen four in a `Sixteen`.
pub(super) fn operand(
    m: &mut Module,
    out: &mut String,
    name: &str,
    roots: &[ExprId],
    line: usize,
    step: usize,
) -> Result<(), Diagnostic> {
    let (on_line, on_step) = (var_bit(0) | var_bit(line), var_bit(step));
    let body = &m.kernel.body;
    if roots.iter().any(|root| body.dtype(*root).reg() != Reg::F32) {
        return Err(Diagnostic::internal(format!("operand {name} of a product is not a float")));
    }
    let is_line = |m: &Module, id: ExprId| m.deps(id) & !on_line == 0;
    let is_step = |m: &Module, id: ExprId| m.deps(id) & !on_step == 0 && m.deps(id) != 0;
    let plain = |id: ExprId| matches!(body.expr(id), Expr::Const(_));
    // Values that are made before and used at each element.
    let (mut lines, mut steps) = (vec![], vec![]);
    let mut keep = |m: &Module, id: ExprId| {
        if plain(id) {
        } else if is_line(m, id) {
            lines.push(id);
        } else if is_step(m, id) {
            steps.push(id);
        }
    };
    roots.iter().for_each(|root| keep(m, *root));
    for id in body.reachable(roots) {
        if !is_line(m, id) && !is_step(m, id) {
            for o in body.operands(id) {
                keep(m, o);
            }
        }
    }
    for list in [&mut lines, &mut steps] {
        list.sort_unstable();
        list.dedup();
    }

    let mut load = Scope::new(4);
    load.bind_var(0, "batch");
    load.bind_var(line, &format!("line.v{line}"));
    load.bind_var(step, &format!("step.v{step}"));
    let upper = name.to_uppercase();
    for (part, var, ids) in [("line", line, &lines), ("step", step, &steps)] {
        let mut fields = format!("    v{var}: i32,\n");
        let mut s = Scope::new(4);
        let mut values = vec![format!("v{var}")];
        for (i, id) in ids.iter().enumerate() {
            let ty = reg_type(m.kernel.body.dtype(*id).reg());
            let _ = writeln!(fields, "    p{i}: {ty},");
            values.push(m.value(&mut s, *id)?.to_string());
            load.bind(*id, Handle::inline(format!("{part}.p{i}")));
        }
        let ty = if part == "line" { format!("{upper}Line") } else { format!("{upper}Step") };
        let _ =
            writeln!(out, "struct {ty} {{\n{fields}}}\nfn {name}_{part}(v0: i32, v{var}: i32) -> {ty} {{");
        let _ = writeln!(out, "{}    return {ty}({});\n}}", s.text, values.join(", "));
    }
    let mut values = vec![];
    for root in roots {
        values.push(m.value(&mut load, *root)?.to_string());
    }
    let (ty, v) = match &values[..] {
        [one] => ("f32", one.clone()),
        eight if eight.len() == 8 => {
            let (low, high) = eight.split_at(4);
            let quad = |q: &[String]| match m.uses_cooperative {
                true => format!("vec4<f16>(vec4<f32>({}))", q.join(", ")),
                false => format!("vec4<f32>({})", q.join(", ")),
            };
            ("Eight", format!("Eight({}, {})", quad(low), quad(high)))
        }
        sixteen if sixteen.len() == 16 => {
            let quads = sixteen.chunks(4).map(|q| format!("vec4<f32>({})", q.join(", ")));
            ("Sixteen", format!("Sixteen({})", quads.collect::<Vec<_>>().join(", ")))
        }
        several => ("vec4<f32>", format!("vec4<f32>({})", several.join(", "))),
    };
    let _ = writeln!(
        out,
        "fn {name}_load(batch: i32, line: {upper}Line, step: {upper}Step) -> {ty} {{\n{}    return {v};\n}}\n",
        load.text
    );
    Ok(())
}
