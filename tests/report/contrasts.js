// WCAG contrast of every element that holds words of its own: [contrast, tag, words].
() => {
  const channels = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const luminance = (colour) => {
    const parts = colour.slice(0, 3).map((v) => {
      const s = v / 255;
      return s <= 0.03928 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const words = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!words || !node.getClientRects().length) continue;
    const style = getComputedStyle(node);
    const ink = luminance(channels(node instanceof SVGElement ? style.fill : style.color));
    const paper = luminance(behind(node));
    found.push([
      (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05),
      node.tagName,
      node.textContent.slice(0, 40),
    ]);
  }
  return found;
};
