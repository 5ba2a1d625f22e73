@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let n = turns[0];
    let a = vec4(T(turns[1]));
    var p = vec4(T(id.x & 255u));
    var q = p + 1.0;
    var r = p + 2.0;
    var s = p + 3.0;
    for (var i = 0u; i < n; i++) {
        p = fma(p, a, a); q = fma(q, a, a); r = fma(r, a, a); s = fma(s, a, a);
        p = fma(p, a, a); q = fma(q, a, a); r = fma(r, a, a); s = fma(s, a, a);
    }
    let sum = dot(p + q, r + s);
    if (sum == 12345.0) { out[0] = f32(sum); }
}
