@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let n = turns[0];
    let a = f32(turns[1]);
    var x = f32(id.x);
    for (var i = 0u; i < n; i++) {
        x = fma(x, a, a); x = fma(x, a, a); x = fma(x, a, a); x = fma(x, a, a);
        x = fma(x, a, a); x = fma(x, a, a); x = fma(x, a, a); x = fma(x, a, a);
    }
    if (x == 12345.0) { out[0] = x; }
}
