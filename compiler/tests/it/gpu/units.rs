//! Products on matrix units for adapters without them.

/// The text of a product on matrix units of subgroups of 32, with the units' operations written out: of a block of 16 × 16
/// sums each invocation has eight neighbours of a row, and a factor is where in workgroup memory it was read.
pub fn written_out(wgsl: &str) -> String {
    let mut out = String::new();
    for line in wgsl.lines().filter(|l| !l.starts_with("enable wgpu") && !l.starts_with("enable subgroups")) {
        let between = |from: &str, to: &str| {
            let (_, rest) = line.split_once(from).unwrap();
            rest.split_once(to).unwrap().0
        };
        let new = if line.contains("coop_mat16x16<f32, C>()") {
            line.replace("coop_mat16x16<f32, C>()", "Sums()")
        } else if line.contains("coopLoad") {
            let rows = line.contains("coopLoadT");
            format!(
                "let {} = Part({}, {}, {rows});",
                between("let ", " ="),
                between("_tile[", "], "),
                between("], ", "u);")
            )
        } else if line.contains("coopMultiplyAdd") {
            line.replace("coopMultiplyAdd(", "multiply_add(i32(invocation), ")
        } else if line.contains("coopStoreT") {
            let sums = between("coopStoreT(", ",");
            format!("keep(i32(invocation), {sums}, {}, {});", between("strip[", "], "), between("], ", "u);"))
        } else if line.contains("@builtin(subgroup_id)") {
            "@builtin(local_invocation_index) flat: u32,".into()
        } else if line.contains("@builtin(subgroup_invocation_id)") {
            continue;
        } else if line.contains("let local = subgroup") {
            "let local = flat; let subgroup = flat / 32u; let invocation = flat % 32u;".into()
        } else {
            line.into()
        };
        out.push_str(&new);
        out.push('\n');
    }
    out + "
struct Sums { low: vec4<f32>, high: vec4<f32> }
struct Part { at: i32, pitch: i32, rows: bool }
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
fn keep(lane: i32, sums: Sums, at: i32, pitch: i32) {
    strip[at + lane / 2 * pitch + lane % 2 * 2] = sums.low;
    strip[at + lane / 2 * pitch + lane % 2 * 2 + 1] = sums.high;
}
"
}
