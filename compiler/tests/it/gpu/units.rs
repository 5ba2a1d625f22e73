//! Emulation of matrix units, so that adapters without them can run products and attention.

/// Declarations that replace matrix units in all kernels: each invocation holds eight adjacent sums of a row
/// in a block of 16 × 16.
const SUMS: &str = "
struct Sums { low: vec4<f32>, high: vec4<f32> }
struct Part { at: i32, pitch: i32, rows: bool }
fn keep(lane: i32, sums: Sums, at: i32, pitch: i32) {
    strip[at + lane / 2 * pitch + lane % 2 * 2] = sums.low;
    strip[at + lane / 2 * pitch + lane % 2 * 2 + 1] = sums.high;
}
";

/// The part of a line between two texts.
fn between<'l>(line: &'l str, from: &str, to: &str) -> &'l str {
    let (_, rest) = line.split_once(from).unwrap();
    rest.split_once(to).unwrap().0
}

/// A text in which operations on matrix units, with subgroups of 32, are replaced by plain code; `own`
/// replaces lines that only one kind of kernel has.
fn lines_written_out(wgsl: &str, own: &dyn Fn(&str) -> Option<String>) -> String {
    let wgsl = wgfc_ir::wgsl::for_naga(wgsl);
    let (mut enabled, mut out) = (String::new(), String::new());
    for line in wgsl.lines().filter(|l| !l.starts_with("enable wgpu") && !l.starts_with("enable subgroups")) {
        let new = if let Some(new) = own(line) {
            new
        } else if line.contains("coop_mat16x16<f32, C>()") {
            line.replace("coop_mat16x16<f32, C>()", "Sums()")
        } else if line.contains("coopMultiplyAdd") {
            line.replace("coopMultiplyAdd(", "multiply_add(i32(invocation), ")
        } else if line.contains("coopStoreT") {
            let sums = between(line, "coopStoreT(", ",");
            let (at, pitch) = (between(line, "strip[", "], "), between(line, "], ", "u);"));
            format!("keep(i32(invocation), {sums}, {at}, {pitch});")
        } else if line.contains("@builtin(subgroup_id)") {
            "@builtin(local_invocation_index) flat: u32,".into()
        } else if line.contains("@builtin(subgroup_invocation_id)") {
            continue;
        } else if line.contains("let local = subgroup") {
            "let local = flat; let subgroup = flat / 32u; let invocation = flat % 32u;".into()
        } else {
            line.into()
        };
        // Every `enable` must stand at the beginning of the text.
        let to = if new.starts_with("enable") { &mut enabled } else { &mut out };
        to.push_str(&new);
        to.push('\n');
    }
    enabled + &out + SUMS
}

/// The text of a product on matrix units with the units' operations emulated. A loaded factor is represented
/// by its position in workgroup memory.
pub fn written_out(wgsl: &str) -> String {
    let load = |line: &str| {
        let rows = line.contains("coopLoadT");
        let (name, at) = (between(line, "let ", " ="), between(line, "_tile[", "], "));
        format!("let {name} = Part({at}, {}, {rows});", between(line, "], ", "u);"))
    };
    lines_written_out(wgsl, &|line| line.contains("coopLoad").then(|| load(line)))
        + "
fn place(p: Part, row: i32, col: i32) -> i32 {
    return p.at * 4 + select(col * p.pitch * 4 + row, row * p.pitch * 4 + col, p.rows);
}
fn y_four(p: Part, k: i32, col: i32) -> vec4<f32> {
    var four = vec4<f32>();
    for (var i = 0; i < 4; i++) {
        let at = place(p, k, col + i);
        four[i] = f32(y_tile[at / 4][at % 4]);
    }
    return four;
}
fn multiply_add(lane: i32, x: Part, y: Part, sums: Sums) -> Sums {
    var all = sums;
    for (var k = 0; k < 16; k++) {
        let at = place(x, lane / 2, k);
        let factor = f32(x_tile[at / 4][at % 4]);
        all.low += factor * y_four(y, k, lane % 2 * 8);
        all.high += factor * y_four(y, k, lane % 2 * 8 + 4);
    }
    return all;
}
"
}

/// The text of attention on matrix units with the units' operations emulated, for workgroups of `threads`
/// invocations. Queries and probabilities are copied when they are loaded, because their memory is reused.
/// Values exchanged in a subgroup go through workgroup memory.
pub fn attention_written_out(wgsl: &str, threads: u32) -> String {
    let load = |line: &str| {
        let (array, rest) = line.split_once("(&").unwrap().1.split_once('[').unwrap();
        let (at, pitch) = rest.split_once("], ").unwrap();
        if line.contains("<f32, C>") {
            let (sums, _) = line.split_once(" =").unwrap();
            return format!("{sums} = taken(i32(invocation), {at}, {});", between_end(pitch));
        }
        let (name, pitch, rows) =
            (between(line, "let ", " ="), between_end(pitch), line.contains("coopLoadT"));
        if line.contains("<f16, A>") {
            assert!(rows, "{line}");
            return format!("let {name} = row_of_{array}(i32(invocation), {at}, {pitch});");
        }
        assert_eq!(array, "tile");
        format!("let {name} = Part({at}, {pitch}, {rows});")
    };
    let shuffle = |line: &str| {
        let value = between(line, "subgroupShuffleXor(", ", 16u)");
        let read = line.replace(&format!("subgroupShuffleXor({value}, 16u)"), "exchanged[local ^ 16u]");
        format!("exchanged[local] = {value};\nworkgroupBarrier();\n{read}\nworkgroupBarrier();")
    };
    let own = |line: &str| match () {
        () if line.contains("coopLoad") => Some(load(line)),
        () if line.contains("subgroupShuffleXor") => Some(shuffle(line)),
        () => None,
    };
    lines_written_out(wgsl, &own)
        + &format!("var<workgroup> exchanged: array<f32, {threads}>;\n")
        + "
fn taken(lane: i32, at: i32, pitch: i32) -> Sums {
    let own = at + lane / 2 * pitch + lane % 2 * 2;
    return Sums(strip[own], strip[own + 1]);
}
struct Row { values: array<f32, 16> }
fn row_of_tile(lane: i32, at: i32, pitch: i32) -> Row {
    var row: Row;
    for (var k = 0; k < 16; k++) {
        row.values[k] = f32(tile[at + lane / 2 * pitch + k / 4][k % 4]);
    }
    return row;
}
fn row_of_probabilities(lane: i32, at: i32, pitch: i32) -> Row {
    var row: Row;
    for (var k = 0; k < 16; k++) {
        row.values[k] = f32(probabilities[at + lane / 2 * pitch + k / 4][k % 4]);
    }
    return row;
}
fn four(p: Part, k: i32, col: i32) -> vec4<f32> {
    var all = vec4<f32>();
    for (var i = 0; i < 4; i++) {
        let at = p.at * 4 + select((col + i) * p.pitch * 4 + k, k * p.pitch * 4 + col + i, p.rows);
        all[i] = f32(tile[at / 4][at % 4]);
    }
    return all;
}
fn multiply_add(lane: i32, x: Row, y: Part, sums: Sums) -> Sums {
    var all = sums;
    var row = x;
    for (var k = 0; k < 16; k++) {
        all.low += row.values[k] * four(y, k, lane % 2 * 8);
        all.high += row.values[k] * four(y, k, lane % 2 * 8 + 4);
    }
    return all;
}
"
}

/// The pitch, without the end of the line.
fn between_end(text: &str) -> &str {
    text.split_once("u);").unwrap().0
}
