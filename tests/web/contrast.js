(root) => {
  const numbers = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (item) => {
    for (let one = item; one; one = one.parentElement) {
      const found = numbers(getComputedStyle(one).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const item of root.querySelectorAll("*")) {
    const own = [...item.childNodes].some((one) => one.nodeType === 3 && one.textContent.trim());
    if (!own || !item.offsetParent || item.closest("script, style")) continue;
    const [a, b] = [luminance(numbers(getComputedStyle(item).color)), luminance(ground(item))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) bad.push(`${item.tagName}.${item.className} ${contrast.toFixed(2)} ${item.textContent.slice(0, 40)}`);
  }
  return bad;
}
