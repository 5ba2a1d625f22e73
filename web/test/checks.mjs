export async function nothing() {}
