// Runs before the page is painted, so that a dark page never flashes white.
"use strict";
{
  const theme = localStorage.getItem("xllm.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}
