// One step: every body attracts every other; velocities first, then positions with them.
// A workgroup to a body: its threads sum the pull of every 64th body each, then together in halves. `POPULATION` is written in front.
@group(0) @binding(0) var<storage, read> position: array<f32>;
@group(0) @binding(1) var<storage, read> velocity: array<f32>;
@group(0) @binding(2) var<storage, read> mass: array<f32>;
@group(0) @binding(3) var<storage, read_write> next_position: array<f32>;
@group(0) @binding(4) var<storage, read_write> next_velocity: array<f32>;

var<workgroup> sums: array<vec3<f32>, 64>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    for (var b = group.x; b < POPULATION; b += groups.x) {
        let mine = vec3(position[3u * b], position[3u * b + 1u], position[3u * b + 2u]);
        var pull = vec3(0.0);
        for (var o = t; o < POPULATION; o += 64u) {
            let apart = vec3(position[3u * o], position[3u * o + 1u], position[3u * o + 2u]) - mine;
            let square = dot(apart, apart) + 1e-4;
            pull += mass[o] / (square * sqrt(square)) * apart;
        }
        sums[t] = pull;
        for (var half = 32u; half > 0u; half /= 2u) {
            workgroupBarrier();
            if t < half {
                sums[t] += sums[t + half];
            }
        }
        workgroupBarrier();
        if t < 3u {
            let v = velocity[3u * b + t] + 0.01 * 6.674e-3 * sums[0][t];
            next_velocity[3u * b + t] = v;
            next_position[3u * b + t] = position[3u * b + t] + 0.01 * v;
        }
        workgroupBarrier();
    }
}
