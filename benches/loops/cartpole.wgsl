// CartPole-v1 with Euler steps under a network of 4 → 8 ReLU → 2, until the pole has fallen.
// A thread to an individual; its genes, in pairs, and its state stay in registers. `POPULATION` and `STEPS` are written in front.
@group(0) @binding(0) var<storage, read> genomes: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read> first: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> reward: array<f32>;
@group(0) @binding(3) var<storage, read_write> last: array<vec4<f32>>;

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= POPULATION {
        return;
    }
    var g: array<vec2<f32>, 29>;
    for (var i = 0u; i < 29u; i++) {
        g[i] = genomes[id.x * 29u + i];
    }
    // Place, velocity, angle, spin.
    var s = first[id.x];
    var survived = 0u;
    for (var step = 0u; step < STEPS; step++) {
        var action = g[28];
        for (var i = 0u; i < 4u; i++) {
            let h = max(s.x * g[i] + s.y * g[4u + i] + s.z * g[8u + i] + s.w * g[12u + i] + g[16u + i], vec2(0.0));
            action += h.x * g[20u + 2u * i] + h.y * g[21u + 2u * i];
        }
        let force = select(-10.0, 10.0, action.y > action.x);
        let sine = sin(s.z);
        let cosine = cos(s.z);
        let thrust = (force + 0.05 * s.w * s.w * sine) * (1.0 / 1.1);
        let spin_rate = (9.8 * sine - cosine * thrust) / (0.5 * (4.0 / 3.0 - 0.1 / 1.1 * cosine * cosine));
        let rate = thrust - 0.05 / 1.1 * spin_rate * cosine;
        s += 0.02 * vec4(s.y, rate, s.w, spin_rate);
        survived += 1u;
        if abs(s.x) > 2.4 || abs(s.z) > 0.20943951 {
            break;
        }
    }
    reward[id.x] = f32(survived);
    last[id.x] = s;
}
