import{WgfcError as Se}from"./index.js";var Me="Chrome and Edge have it since version 113, on Android since 121; Safari since 26; Firefox since 141, first on Windows";function K(n){return new Se("no-webgpu",`there is no WebGPU: ${ke(n)}. Slower, and without it, \`wgfc/cpu\` runs .onnx models`)}function ke({api:n,secure:e,agent:r}){let t=/Linux/.test(r)&&!/Android/.test(r);if(!n&&e===!1)return"browsers give it to secure pages alone: serve this page by https, or from localhost";if(!n)return`this browser has none, or it is turned off. ${Me}${t?". In Chrome for Linux it may need chrome://flags/#enable-unsafe-webgpu":""}`;let o=/Firefox/.test(r)?"about:support":/Chrome|Edg/.test(r)?"chrome://gpu":void 0,i=t?"; Chrome for Linux may need to be started with --enable-unsafe-webgpu --enable-features=Vulkan":"";return`the browser finds no adapter: the GPU or its driver is missing or blocked${o?`, which ${o} tells`:""}. Update the driver, and turn hardware acceleration on${i}`}function F(){let{navigator:n,isSecureContext:e}=globalThis;return{api:!!n?.gpu,secure:e,agent:n?.userAgent??""}}import{WgfcError as Ae}from"./index.js";function Ge(n){return new Ae("aborted","aborted by the caller's signal",{cause:n.reason})}function H(n){if(n?.aborted)throw Ge(n)}async function Y(n,e,r=16){let t=!0,o=e.finally(()=>t=!1);o.catch(()=>{});for(let i=0;t&&i<r;i++)n.pushErrorScope("internal"),await n.popErrorScope().catch(()=>{});return o}var Ee=64,Ie=.5,v=class{#e;#i;#t;#n;constructor(e,r){[this.#e,this.#i]=[e,r],this.#n=e.features.has("timestamp-query"),this.#n&&(this.#t={set:e.createQuerySet({type:"timestamp",count:2}),ticks:e.createBuffer({size:16,usage:516}),read:e.createBuffer({size:16,usage:9})})}dispose(){for(let e of Object.values(this.#t??{}))e.destroy()}async both(e){H(this.#i);let{queue:r}=this.#e,t=this.#n?this.#t:void 0,o=performance.now(),i=this.#e.createCommandEncoder(),a=i.beginComputePass(t?{timestampWrites:{querySet:t.set,beginningOfPassWriteIndex:0,endOfPassWriteIndex:1}}:{});e(a),a.end(),t&&(i.resolveQuerySet(t.set,0,2,t.ticks,0),i.copyBufferToBuffer(t.ticks,0,t.read,0,16)),r.submit([i.finish()]),await Y(this.#e,r.onSubmittedWorkDone(),Ee);let u=(performance.now()-o)/1e3;if(!t)return[u,0];await t.read.mapAsync(1);let[s,c]=new BigUint64Array(t.read.getMappedRange());return t.read.unmap(),[u,Number(c-s)/1e9]}async time(e){let[r,t]=await this.both(e);return t>0?t:r}async warmUp(e){let r=performance.now();for(let[t,o]=[0,1/0];performance.now()-r<Ie*1e3&&t<4;){let i=1/0;for(let a=0;a<3;a++){let[u,s]=await this.both(e);this.#n&&=s>0&&s<1.01*u+2e-4,i=Math.min(i,s>0?s:u)}t=i>.99*o?t+1:0,o=Math.min(o,i)}}};var Oe=["apple","arm","broadcom","img-tec","imagination","intel","qualcomm","samsung"];function P(n){let{vendor:e="",architecture:r="",description:t=""}=n??{};return/swiftshader/i.test(`${r} ${t}`)?"swiftshader":n?.isFallbackAdapter||/llvmpipe|lavapipe|basic render/i.test(`${r} ${t}`)?"software":e==="nvidia"?"discrete":Oe.includes(e)?"integrated":void 0}var y="chromium-experimental-subgroup-matrix";function _(n){let e=n?.subgroupMatrixConfigs;return!e?.length||e.some(r=>`${[r.M,r.N,r.K,r.componentType,r.resultComponentType]}`=="16,16,16,f16,f32")}var Re={bandwidth:28e11,flops_f32:57344e9,flops_f16:114688e9,flops_matrix:448e12,dispatch_cost:4e-6,cores:128,resident:262144,memory_latency:600,operation:15e-10,barrier:4e-8,workgroup_bandwidth:6e10,cache_bandwidth:3e13,resident_workgroups:1,exchange:15e-7},Te={bandwidth:7e10,flops_f32:24e11,flops_f16:48e11,flops_matrix:48e11,dispatch_cost:8e-6,cores:8,resident:16384,memory_latency:400,operation:3e-9,barrier:8e-8,workgroup_bandwidth:3e10,cache_bandwidth:6e11,resident_workgroups:1,exchange:3e-6},Be={bandwidth:11e8,flops_f32:66e9,flops_f16:13e9,flops_matrix:13e9,dispatch_cost:17e-6,cores:1,resident:64,memory_latency:30,operation:9e-9,barrier:16e-7,workgroup_bandwidth:61e8,cache_bandwidth:62e8,resident_workgroups:1,exchange:5e-6},De={bandwidth:21e8,flops_f32:125e8,flops_f16:125e8,flops_matrix:125e8,dispatch_cost:17e-6,cores:1,resident:64,memory_latency:17,operation:21e-9,barrier:103e-7,workgroup_bandwidth:18e8,cache_bandwidth:21e8,resident_workgroups:1,exchange:2e-5},Le={discrete:Re,integrated:Te,software:Be,swiftshader:De};function k(n){let e=P(n);return e&&Le[e]}function $e(n){return"adapterInfo"in n?n.adapterInfo:n.info}function Q(n){let e=$e(n),r=k(e),{subgroupMinSize:t,subgroupMaxSize:o}=e??{},i=n.features,{limits:a}=je(n.limits,i,t===o?t:void 0),u=i.has(y)&&_(e);return{version:1,limits:{...a,...u?{subgroup_matrix:!0}:{}},...r?{speeds:r}:{}}}function je(n,e,r){let t=new Set(e),o={f16:t.has("shader-f16")},i=(a,...u)=>{let s=u.filter(c=>c!==void 0);s.length&&(o[a]=Math.min(...s))};return i("max_storage_buffers",n.maxStorageBuffersPerShaderStage),i("max_invocations",n.maxComputeInvocationsPerWorkgroup),i("max_workgroup_bytes",n.maxComputeWorkgroupStorageSize),i("max_binding_bytes",n.maxStorageBufferBindingSize,n.maxBufferSize),i("max_workgroups",n.maxComputeWorkgroupsPerDimension),r&&t.has("subgroups")&&(o.subgroup=r),{version:1,limits:o}}var qe="speeds?1";var ze=async n=>n===!1?void 0:globalThis.caches?.open(n===!0?"wgfc":n);function We(n,{vendor:e,architecture:r,device:t,description:o}){let i=[e,r,t,o,globalThis.navigator?.userAgent??""];return`https://wgfc.invalid/${n}&${encodeURIComponent(i.join("|"))}`}async function Ne(n,e,r,t){await(e&&await ze(t).catch(()=>{}))?.put(We(n,e),new Response(JSON.stringify(r))).catch(()=>{})}var V=(n,e,r=!0)=>Ne(qe,n,e,r);import{WgfcError as er}from"./index.js";var J=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
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
`;var X=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
var<workgroup> shared_: array<f32, 256>;
@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) id: u32) {
    let n = turns[0];
    shared_[id] = f32(id);
    for (var i = 0u; i < n; i++) {
        workgroupBarrier();
        shared_[(id + 1u) & 255u] += 1.0;
    }
    if (shared_[id] == -1.0) { out[0] = 1.0; }
}
`;var Z=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read> data: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) id: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let n = turns[0];
    var sum = vec4(0.0);
    for (var i = 0u; i < n; i++) {
        let first = ((i + group.x) & 15u) * 4096u + id;
        for (var j = 0u; j < 4096u; j += 1024u) {
            sum += data[first + j] + data[first + j + 256u] + data[first + j + 512u] + data[first + j + 768u];
        }
    }
    if (dot(sum, sum) == 12345.0) { out[0] = sum.x; }
}
`;var ee=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
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
`;var re=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read> next: array<u32>;
@group(0) @binding(2) var<storage, read_write> place: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var at = place[0] & turns[2];
    let n = turns[0];
    storageBarrier();
    for (var i = 0u; i < n; i++) {
        at = next[at];
    }
    if (id.x == 0u) { place[0] = at; }
}
`;var te=`@group(0) @binding(0) var<storage, read> src: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> dst: array<vec4<f32>>;
// Thread t of T copies the elements t, t + T, t + 2T, \u2026.
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let stride = groups.x * 256u;
    let n = arrayLength(&src);
    for (var i = id.x; i < n; i += stride) {
        dst[i] = src[i];
    }
}
`;var ne=`@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read_write> next: array<u32>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = id.x; i < turns[2]; i += groups.x * 256u) {
        next[i] = (i + turns[3]) & (turns[2] - 1u);
    }
}
`;var oe=`@group(0) @binding(0) var<storage, read_write> data: array<f32, 256>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    data[id.x] += 1.0;
}
`;var ie=`enable f16;
enable subgroups;
enable chromium_experimental_subgroup_matrix;
@group(0) @binding(0) var<storage, read> turns: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
var<workgroup> results: array<f32, 2048>;
@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) local: u32, @builtin(subgroup_id) subgroup: u32) {
    let n = turns[0];
    let a = subgroup_matrix_left<f16, 16, 16>(f16(turns[1]));
    let b = subgroup_matrix_right<f16, 16, 16>(f16(turns[1]));
    var p = subgroup_matrix_result<f32, 16, 16>();
    var q = subgroup_matrix_result<f32, 16, 16>();
    var r = subgroup_matrix_result<f32, 16, 16>();
    var s = subgroup_matrix_result<f32, 16, 16>();
    for (var i = 0u; i < n; i++) {
        p = subgroupMatrixMultiplyAccumulate(a, b, p); q = subgroupMatrixMultiplyAccumulate(a, b, q);
        r = subgroupMatrixMultiplyAccumulate(a, b, r); s = subgroupMatrixMultiplyAccumulate(a, b, s);
        p = subgroupMatrixMultiplyAccumulate(a, b, p); q = subgroupMatrixMultiplyAccumulate(a, b, q);
        r = subgroupMatrixMultiplyAccumulate(a, b, r); s = subgroupMatrixMultiplyAccumulate(a, b, s);
    }
    var sum = 0.0;
    let own = subgroup % 8u * 256u;
    subgroupMatrixStore<row_major>(&results, own, p, 16u);
    workgroupBarrier();
    sum += results[local];
    workgroupBarrier();
    subgroupMatrixStore<row_major>(&results, own, q, 16u);
    workgroupBarrier();
    sum += results[local];
    workgroupBarrier();
    subgroupMatrixStore<row_major>(&results, own, r, 16u);
    workgroupBarrier();
    sum += results[local];
    workgroupBarrier();
    subgroupMatrixStore<row_major>(&results, own, s, 16u);
    workgroupBarrier();
    sum += results[local];
    if (sum == 12345.0) { out[0] = sum; }
}
`;var rr=32768,tr=16,A=4,G=4,nr=150,or=1.1,ir=.65,ar=64,sr=16*16**3,ae=["warming up","latencies","arithmetic","cores","caches","memory","dispatches"];async function Vr(n,e={}){let{cache:r=!0,signal:t}=e,o=n&&"queue"in n?n:void 0,i=o?void 0:n??await navigator.gpu?.requestAdapter({powerPreference:"high-performance"});if(!o&&!i)throw K(F());let a=["timestamp-query","shader-f16","subgroups",y].filter(p=>i?.features.has(p)),u=o??await i.requestDevice({requiredFeatures:a}),s=o?o.adapterInfo:i.info;u.pushErrorScope("out-of-memory"),u.pushErrorScope("validation");let c=new U(u,s,t);try{let p=await c.speeds(l=>e.onProgress?.({stage:ae[l],done:l,total:ae.length})),f={...Q(o??i),device:ur(s),speeds:{...k(s),...p}};return r!==!1&&await V(s,f.speeds,r),f}finally{let p=await Promise.all([0,1].map(()=>u.popErrorScope().catch(()=>null)));c.dispose(),o||u.destroy();let f=p.find(l=>l);if(f)throw new er("validation",`measuring: ${f.message}`)}}function ur(n){return[n.vendor,n.architecture,n.device,n.description].filter(Boolean).join(" ")}var x=({pipeline:n,group:e},r,t)=>o=>{o.setPipeline(n),o.setBindGroup(0,e);for(let i=0;i<t;i++)o.dispatchWorkgroups(r)},U=class{#e;#i;#t;#n=[];#c;#o;constructor(e,r,t){[this.#e,this.#i,this.#t]=[e,r,["software","swiftshader"].includes(P(r)??"")],this.#c=this.#a(256),this.#o=new v(e,t)}dispose(){for(let e of this.#n)e.destroy();this.#o.dispose()}async speeds(e){let{limits:r,features:t}=this.#e;e(0);let[o,i]=["f32","f16"].map(d=>J.replaceAll("T(",`${d}(`)),a=[ee,o,X,ne,re,Z,te,oe,...t.has("shader-f16")?[`enable f16;
${i}`]:[]];["shader-f16","subgroups",y].every(d=>t.has(d))&&_(this.#i)&&a.push(ie);let s=await Promise.all(a.map(d=>this.#f(d))),[c,p,f,l,C,ue,ce,de,E,I]=s,h=this.#t,O=Math.min(r.maxStorageBufferBindingSize,r.maxBufferSize),pe=d=>2**Math.floor(Math.log2(Math.min(d,O))),[b,R,T,fe]=[256,256,4096,1<<20].map(d=>this.#a(d)),B=this.#a(pe(h?8<<20:128<<20)),m=(d,...w)=>this.#d(d,[this.#c,...w]);for(let d of[B,T]){let w=d.size/4;this.#s(1,1,w,4127%w|1),await this.#o.time(x(m(l,d),h?8:1024,1))}this.#s(1,1,4294967295,0);let S=m(p,b),g=h?64:4096;await this.#m(S,g),e(1);let le=await this.#r(m(c,b),1)/8,me=await this.#r(m(f,b),1),ge=await this.#r(m(C,B,R),1);e(2);let[he,D]=[await this.#r(S,1),await this.#r(S,g)],L=g*256*ar,M=L/D,$=E?L/await this.#r(m(E,b),g):M,be=g*(256/(this.#i.subgroupMinSize??256)),we=I?be*sr/await this.#r(m(I,b),g):$;e(3);let j=Math.max(1,g*he/D);this.#s(1,1,0,0);let ye=64*await this.#g(m(C,T,R),h?256:16384);e(4);let q=m(ue,fe,b),z=h?16:2048,W=65536/await this.#r(q,1),xe=z*65536/await this.#r(q,z);e(5);let N=await this.#h(ce,Math.min(O,h?16<<20:128<<20));e(6);let ve=await this.#b(this.#d(de,[this.#a(1024)])),Pe=j*256/M,_e={bandwidth:N,flops_f32:M,flops_f16:$,flops_matrix:we,dispatch_cost:ve,cores:j,resident:ye,memory_latency:ge/Pe,operation:ir*le,barrier:me,workgroup_bandwidth:W,cache_bandwidth:Math.max(xe,W,N)};return Object.fromEntries(Object.entries(_e).map(([d,w])=>[d,Number(Math.min(Math.max(w,1e-12),1e18).toPrecision(4))]))}#a(e){let r=this.#e.createBuffer({label:"measuring",size:e,usage:140});return this.#n.push(r),r}async#f(e){let t=[...e.matchAll(/var<storage, (read|read_write)>/g)].map(i=>i[1]==="read"?"read-only-storage":"storage").map((i,a)=>({binding:a,visibility:4,buffer:{type:i}})),o=this.#e.createPipelineLayout({bindGroupLayouts:[this.#e.createBindGroupLayout({entries:t})]});return this.#e.createComputePipelineAsync({layout:o,compute:{module:this.#e.createShaderModule({code:e}),entryPoint:"main"}})}#d(e,r){let t=r.map((o,i)=>({binding:i,resource:{buffer:o}}));return{pipeline:e,group:this.#e.createBindGroup({layout:e.getBindGroupLayout(0),entries:t})}}#s(...e){this.#e.queue.writeBuffer(this.#c,0,Uint32Array.from(e))}#l(e,r,t){return this.#o.both(x(e,r,t))}async#u(e,r,t,o){return this.#s(r),this.#o.time(x(e,t,o))}async#m(e,r){let[t]=await this.#p(e,r);this.#s(t),await this.#o.warmUp(x(e,r,1))}async#p(e,r){for(let t=16;;t*=4){let o=1/0;for(let i=0;i<2;i++)o=Math.min(o,await this.#u(e,t,r,1));if(o>=A/1e3)return[t,1];if(!(t<rr/2))return[t,Math.min(tr,Math.ceil(A/1e3/o))]}}async#r(e,r){let t=performance.now(),[o,i]=await this.#p(e,r),a=[o/4,o/2,o].map(s=>s*i),u=[1/0,1/0,1/0];for(let s=0;;s++){for(let l of[0,1,2])u[l]=Math.min(u[l],await this.#u(e,a[l]/i,r,i));let{each:c,straight:p}=se(a,u),f=performance.now()-t>nr;if(s>=G-1&&p||s>=4*G||f)return c}}async#g(e,r){let[t,o]=await this.#p(e,1),i=async u=>{let[s,c]=[1/0,1/0];for(let p=0;p<3;p++)s=Math.min(s,await this.#u(e,t,1,o)),c=Math.min(c,await this.#u(e,t,u,o));return c<1.5*s},a=1;for(;a<r&&await i(a*2);)a*=2;if(a>=r)return a;for(let u=a*2;u-a>Math.max(1,a/8);){let s=a+Math.floor((u-a)/2);await i(s)?a=s:u=s}return a}async#h(e,r){let t=this.#d(e,[this.#a(r),this.#a(r)]),o=this.#e.limits.maxComputeWorkgroupsPerDimension,i=Math.min(o,Math.ceil(r/16/(this.#t?256*64:256*8))),a=async p=>{let f=1/0;for(let l=0;l<G;l++)f=Math.min(f,await this.#o.time(x(t,i,p)));return f},u=await a(1),s=Math.max(2,Math.min(32,Math.ceil(A/1e3/u))),c=await a(s);return 2*r*s/(c>u?(c-u)*s/(s-1):c)}async#b(e){let r=[100,200,400],t=[1/0,1/0,1/0];for(let o=0;o<8;o++)for(let i of[0,1,2])t[i]=Math.min(t[i],(await this.#l(e,4,r[i]))[0]);return se(r,t).each}};function se(n,e){let r=(a,u)=>(e[u]-e[a])/(n[u]-n[a]),[t,o,i]=[r(0,1),r(1,2),r(0,2)];return i>0?{each:i,straight:t>0&&o>0&&Math.max(t,o)<=or*Math.min(t,o)}:{each:e[2]/n[2],straight:!1}}export{Vr as measure,se as slope};
