// Acrobot, "book" equations, Euler steps, under a network of 6 → 16 tanh → 3.
// A thread to an individual, its genes copied to memory of its own. `POPULATION` and `STEPS` are written in front.
@group(0) @binding(0) var<storage, read> genomes: array<f32>;
@group(0) @binding(1) var<storage, read> first: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> reward: array<f32>;
@group(0) @binding(3) var<storage, read_write> last: array<vec4<f32>>;

const PI = 3.141592653589793;

fn wrapped(angle: vec2<f32>) -> vec2<f32> {
    return angle - 2.0 * PI * floor((angle + PI) * (1.0 / (2.0 * PI)));
}

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= POPULATION {
        return;
    }
    var g: array<f32, 163>;
    for (var i = 0u; i < 163u; i++) {
        g[i] = genomes[id.x * 163u + i];
    }
    var angle = first[id.x].xy;
    var speed = first[id.x].zw;
    var total = 0.0;
    for (var step = 0u; step < STEPS; step++) {
        let cosine = cos(angle);
        let sine = sin(angle);
        var action = vec3(g[160], g[161], g[162]);
        for (var i = 0u; i < 16u; i++) {
            let h = tanh(
                cosine.x * g[i] + sine.x * g[16u + i] + cosine.y * g[32u + i] + sine.y * g[48u + i]
                + speed.x * g[64u + i] + speed.y * g[80u + i] + g[96u + i]
            );
            action += h * vec3(g[112u + 3u * i], g[113u + 3u * i], g[114u + 3u * i]);
        }
        // The first of the largest.
        var torque = select(-1.0, 0.0, action.y > action.x);
        torque = select(torque, 1.0, action.z > max(action.x, action.y));
        let d1 = 3.5 + cosine.y;
        let d2 = 1.25 + 0.5 * cosine.y;
        let phi2 = 4.9 * cos(angle.x + angle.y - PI / 2.0);
        let phi1 = -0.5 * speed.y * sine.y * (speed.y + 2.0 * speed.x) + 14.7 * cos(angle.x - PI / 2.0) + phi2;
        let moved = torque + d2 / d1 * phi1 - 0.5 * speed.x * speed.x * sine.y - phi2;
        let second = moved / (1.25 - d2 * d2 / d1);
        let rate = vec2(-(d2 * second + phi1) / d1, second);
        angle = wrapped(angle + 0.05 * speed);
        let most = vec2(4.0 * PI, 9.0 * PI);
        speed = clamp(speed + 0.05 * rate, -most, most);
        total += select(-0.01, 1.0, -cos(angle.x) - cos(angle.x + angle.y) > 1.0);
    }
    reward[id.x] = total;
    last[id.x] = vec4(angle, speed);
}
