// y[p] = 10·D + Σ_d (x[p, d]² − 10·cos 2πx[p, d]).
// A workgroup to an individual: its threads sum every 128th term each, then together in halves. `POPULATION` and `DIMS` are written in front.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

var<workgroup> sums: array<f32, 128>;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    for (var p = group.x; p < POPULATION; p += groups.x) {
        var sum = 0.0;
        for (var d = t; d < DIMS; d += 128u) {
            let v = x[p * DIMS + d];
            sum += v * v - 10.0 * cos(6.283185307179586 * v);
        }
        sums[t] = sum;
        for (var half = 64u; half > 0u; half /= 2u) {
            workgroupBarrier();
            if t < half {
                sums[t] += sums[t + half];
            }
        }
        if t == 0u {
            y[p] = 10.0 * f32(DIMS) + sums[0];
        }
        workgroupBarrier();
    }
}
