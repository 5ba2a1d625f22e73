// I₀ of z = x²/4 for x below 8.
fn i0_small(z: f32) -> f32 {
    return ((((((((((1.211599092e-15 * z + 4.887155262e-14) * z + 8.279219658e-12) * z + 6.043361384e-10) * z
        + 3.947857159e-8) * z + 1.928254851e-6) * z + 6.944783541e-5) * z + 1.736101514e-3) * z + 2.777779377e-2) * z
        + 0.2499999863) * z + 1.000000005) * z + 1.0;
}

// I₁/x likewise.
fn i1_small(z: f32) -> f32 {
    return (((((((((6.66779244e-15 * z + 2.448073776e-13) * z + 3.721210358e-11) * z + 2.418805194e-9) * z
        + 1.381499871e-7) * z + 5.785013783e-6) * z + 1.736181069e-4) * z + 3.47220815e-3) * z + 4.166668115e-2) * z
        + 0.2499999942) * z + 0.5;
}

// √x·e⁻ˣ·I₀ of u = 1/x for x from 8 on.
fn i0_large(u: f32) -> f32 {
    return (((((1.846165062 * u - 0.3123729405) * u + 8.608187243e-2) * u + 2.718330245e-2) * u + 2.809734724e-2) * u
        + 4.986737245e-2) * u + 0.3989422812;
}

fn i1_large(u: f32) -> f32 {
    return (((((-2.081635698 * u + 0.3395532581) * u - 0.1036937734) * u - 3.863348325e-2) * u - 4.680321909e-2) * u
        - 0.1496028944) * u + 0.3989422795;
}

fn bessel_i0_f32(x: f32) -> f32 {
    let a = abs(x);
    let far = max(a, 8.0);
    let large = precise_exp(far - 4.0) * (54.598150033144236 * i0_large(1.0 / far) * inverseSqrt(far));
    return select(select(large, i0_small(0.25 * a * a), a < 8.0), a, is_nan(x) || is_inf(x));
}

fn scaled_bessel_i0_f32(x: f32) -> f32 {
    let a = abs(x);
    let far = max(a, 8.0);
    let y = select(i0_large(1.0 / far) * inverseSqrt(far), precise_exp(-a) * i0_small(0.25 * a * a), a < 8.0);
    return select(select(y, 0.0, is_inf(x)), x, is_nan(x));
}

fn bessel_i1_f32(x: f32) -> f32 {
    let a = abs(x);
    let far = max(a, 8.0);
    let large = precise_exp(far - 4.0) * (54.598150033144236 * i1_large(1.0 / far) * inverseSqrt(far));
    let y = select(large, a * i1_small(0.25 * a * a), a < 8.0);
    return select(select(y, -y, x < 0.0), x, is_nan(x) || is_inf(x));
}

fn scaled_bessel_i1_f32(x: f32) -> f32 {
    let a = abs(x);
    let far = max(a, 8.0);
    let y = select(i1_large(1.0 / far) * inverseSqrt(far), precise_exp(-a) * a * i1_small(0.25 * a * a), a < 8.0);
    return select(select(select(y, -y, x < 0.0), 0.0, is_inf(x)), x, is_nan(x));
}

// K₀ + ln(x/2)·I₀ of z = x²/4 for x up to 2, and K₀ from it.
fn k0_small(x: f32) -> f32 {
    let z = 0.25 * x * x;
    let p = (((((3.9003623e-6 * z + 1.180802163e-4) * z + 2.615061957e-3) * z + 3.489206115e-2) * z + 0.2306960999) * z
        + 0.4227843341) * z - 0.5772156649;
    return p - precise_log(0.5 * x) * i0_small(z);
}

fn k1_small(x: f32) -> f32 {
    let z = 0.25 * x * x;
    let p = (((((-2.86351974e-7 * z - 1.032997141e-5) * z - 2.788574447e-4) * z - 4.795541293e-3) * z - 4.539379277e-2) * z
        - 0.1681960837) * z + 3.860783245e-2;
    return 1.0 / x + x * (p + precise_log(0.5 * x) * i1_small(z));
}

// K₀·eˣ for x from 2 on, by √x·eˣ·K₀ of 1/x.
fn k0_large(x: f32) -> f32 {
    let u = 1.0 / x;
    return inverseSqrt(x) * ((((((((6.830627407e-2 * u - 0.1853032459) * u + 0.2324567233) * u - 0.1899268425) * u
        + 0.1276446672) * u - 9.070091531e-2) * u + 8.807392126e-2) * u - 0.1566633385) * u + 1.253314134);
}

fn k1_large(x: f32) -> f32 {
    let u = 1.0 / x;
    return inverseSqrt(x) * ((((((((-8.254063285e-2 * u + 0.2250723909) * u - 0.2849964135) * u + 0.2371745253) * u
        - 0.1655553339) * u + 0.1272250025) * u - 0.1468141099) * u + 0.4699917055) * u + 1.253314141);
}

// The values of K and Y outside of their domain and at 0, else y.
fn right_of_zero(x: f32, y: f32, at_zero: f32) -> f32 {
    return select(select(float_of_bits(0x7fc00000u), at_zero, x == 0.0), y, x > 0.0);
}

fn bessel_k0_f32(x: f32) -> f32 {
    let far = clamp(x, 2.0, 200.0);
    let y = select(precise_exp(-far) * k0_large(far), k0_small(x), x <= 2.0);
    return right_of_zero(x, y, float_of_bits(0x7f800000u));
}

fn scaled_bessel_k0_f32(x: f32) -> f32 {
    let y = select(k0_large(max(x, 2.0)), precise_exp(x) * k0_small(x), x <= 2.0);
    return right_of_zero(x, select(y, 0.0, is_inf(x)), float_of_bits(0x7f800000u));
}

fn bessel_k1_f32(x: f32) -> f32 {
    let far = clamp(x, 2.0, 200.0);
    let y = select(precise_exp(-far) * k1_large(far), k1_small(x), x <= 2.0);
    return right_of_zero(x, y, float_of_bits(0x7f800000u));
}

fn scaled_bessel_k1_f32(x: f32) -> f32 {
    let y = select(k1_large(max(x, 2.0)), precise_exp(x) * k1_small(x), x <= 2.0);
    return right_of_zero(x, select(y, 0.0, is_inf(x)), float_of_bits(0x7f800000u));
}

// J₀ below 8: its two zeros as factors, so that it is small where it should be.
fn j0_small(x: f32) -> f32 {
    let z = x * x;
    let t = 0.03125 * z - 1.0;
    let p = ((((((((-2.814972361e-9 * t + 4.039668602e-8) * t - 4.676951923e-7) * t + 4.366574683e-6) * t
        - 3.157343169e-5) * t + 1.697721349e-4) * t - 6.415390639e-4) * t + 1.563643149e-3) * t - 2.119794289e-3) * t
        + 1.143493775e-3;
    return ((z - 5.783185958862305) - 4.084479834e-9) * ((z - 30.471261978149414) - 3.655126723e-7) * p;
}

fn j1_small(x: f32) -> f32 {
    let z = x * x;
    let t = 0.03125 * z - 1.0;
    let p = (((((((1.841033754e-9 * t - 2.378607569e-8) * t + 2.442415828e-7) * t - 1.988895171e-6) * t
        + 1.224217661e-5) * t - 5.408008751e-5) * t + 1.586001678e-4) * t - 2.697522705e-4) * t + 1.949893699e-4;
    return x * ((z - 14.681970596313477) - 4.581041669e-8) * ((z - 49.21845626831055) - 5.33840568e-8) * p;
}

// Sine and cosine; of large angles they are none of the nearest, but no larger than 1.
fn bessel_angle(x: f32) -> vec2<f32> {
    return clamp(sin_cos_f32(min(x, 1e9)), vec2<f32>(-1.0, -1.0), vec2<f32>(1.0, 1.0));
}

// J and Y of order 0 from 8 on (DLMF 10.17.3): what turns, and the modulus.
fn bessel_0_large(x: f32) -> vec2<f32> {
    let u = 1.0 / x;
    let z = u * u;
    let p = (((3.490572673 * z - 0.542817212) * z + 0.1119985967) * z - 7.03122101e-2) * z + 1.0;
    let q = u * ((((-12.43746569 * z + 1.594759717) * z - 0.2264299324) * z + 7.324091486e-2) * z - 0.1249999996);
    let t = bessel_angle(x);
    let sum = t.x + t.y;
    let difference = t.x - t.y;
    return 0.5641895835477563 * inverseSqrt(x) * vec2<f32>(p * sum - q * difference, p * difference + q * sum);
}

fn bessel_1_large(x: f32) -> vec2<f32> {
    let u = 1.0 / x;
    let z = u * u;
    let p = (((-4.007474657 * z + 0.6434466004) * z - 0.1440239301) * z + 0.1171871757) * z + 1.0;
    let q = u * ((((14.07670157 * z - 1.846459807) * z + 0.2768254832) * z - 0.1025376522) * z + 0.3749999996);
    let t = bessel_angle(x);
    let sum = t.x + t.y;
    let difference = t.x - t.y;
    return 0.5641895835477563 * inverseSqrt(x) * vec2<f32>(p * difference + q * sum, q * difference - p * sum);
}

fn bessel_j0_f32(x: f32) -> f32 {
    let a = abs(x);
    if (a < 8.0) {
        return j0_small(a);
    }
    return select(bessel_0_large(a).x, float_of_bits(0x7fc00000u), is_nan(x) || is_inf(x));
}

fn bessel_j1_f32(x: f32) -> f32 {
    let a = abs(x);
    if (a < 8.0) {
        return j1_small(x);
    }
    let y = bessel_1_large(a).x;
    return select(select(y, -y, x < 0.0), float_of_bits(0x7fc00000u), is_nan(x) || is_inf(x));
}

fn bessel_y0_f32(x: f32) -> f32 {
    if (x >= 8.0) {
        return select(bessel_0_large(x).y, float_of_bits(0x7fc00000u), is_inf(x));
    }
    let t = 0.03125 * x * x - 1.0;
    let p = ((((((((((5.370642899e-6 * t - 7.376498958e-5) * t + 8.061030612e-4) * t - 7.024648827e-3) * t
        + 4.63670765e-2) * t - 0.2189580377) * t + 0.6721770716) * t - 1.077547601) * t + 0.1441263243) * t + 1.647096467) * t
        - 0.8284358904) * t - 0.3822506543;
    let y = 0.6366197723675814 * precise_log(x) * j0_small(x) + p;
    return right_of_zero(x, y, float_of_bits(0xff800000u));
}

fn bessel_y1_f32(x: f32) -> f32 {
    if (x >= 8.0) {
        return select(bessel_1_large(x).y, float_of_bits(0x7fc00000u), is_inf(x));
    }
    let t = 0.03125 * x * x - 1.0;
    let p = (((((((((-3.637291468e-6 * t + 4.53319409e-5) * t - 4.437810133e-4) * t + 3.421832172e-3) * t
        - 1.962877274e-2) * t + 7.854815754e-2) * t - 0.1963983958) * t + 0.2350720406) * t + 2.336757158e-2) * t
        - 0.2433774282) * t + 7.075985882e-2;
    let y = 0.6366197723675814 * (precise_log(x) * j1_small(x) - 1.0 / x) + x * p;
    return right_of_zero(x, y, float_of_bits(0xff800000u));
}

fn spherical_bessel_j0_f32(x: f32) -> f32 {
    let y = select(clamp(sin_f32(x), -1.0, 1.0) / x, 1.0 - x * x * 0.16666667, abs(x) < 1e-2);
    return select(select(y, 0.0, is_inf(x)), x, is_nan(x));
}

// Ai(x)·e^ζ·√√x of u = 1/ζ from 1 on.
fn airy_right(u: f32) -> f32 {
    return (((((((((1.10037488e-4 * u - 9.661522757e-4) * u + 3.751619173e-3) * u - 8.55199873e-3) * u + 1.291008111e-2) * u
        - 1.405657152e-2) * u + 1.224268973e-2) * u - 1.012793497e-2) * u + 1.042592447e-2) * u - 1.958817279e-2) * u
        + 0.28209478;
}

// From −1.5 to 1, and from −4 to −1.5.
fn airy_middle(x: f32) -> f32 {
    let t = x + 0.25;
    return (((((((((-3.381038999e-6 * t + 3.713006492e-5) * t - 7.925203293e-5) * t - 4.354263007e-4) * t + 2.831839016e-3) * t
        - 3.621805859e-3) * t - 1.944238395e-2) * t + 8.00548035e-2) * t - 5.234054713e-2) * t - 0.2463892801) * t
        + 0.4187246143;
}

fn airy_left(x: f32) -> f32 {
    let t = x + 2.75;
    return (((((((((-8.363903245e-5 * t + 1.298422957e-4) * t + 1.354492096e-3) * t - 4.856974691e-3) * t - 6.358679588e-3) * t
        + 5.939033473e-2) * t - 3.866114864e-2) * t - 0.2974540474) * t + 0.369174774) * t + 0.5513387724) * t - 0.2684905459;
}

fn airy_ai_f32(x: f32) -> f32 {
    let zeta = abs(x) * sqrt(abs(x)) * 0.6666666666666666;
    if (is_nan(x) || is_inf(zeta)) {
        return select(0.0, float_of_bits(0x7fc00000u), is_nan(x) || is_inf(x));
    }
    if (x > 1.0) {
        return precise_exp(-zeta) * airy_right(1.0 / zeta) * inverseSqrt(sqrt(x));
    }
    if (x >= -4.0) {
        return select(airy_left(x), airy_middle(x), x > -1.5);
    }
    // DLMF 9.7.9.
    let u = 1.0 / zeta;
    let z = u * u;
    let p = ((((-10.27626885 * z + 2.010356175) * z - 0.2762120235) * z + 5.753647814e-2) * z - 3.713316559e-2) * z + 1.0;
    let q = u * (((((-39.74524257 * z + 7.118060948) * z - 0.8052303343) * z + 0.1155777498) * z - 3.799158218e-2) * z
        + 6.944444372e-2);
    let t = bessel_angle(zeta);
    let turned = p * (t.x + t.y) + q * (t.x - t.y);
    return turned * 0.3989422804014327 * inverseSqrt(sqrt(-x));
}
