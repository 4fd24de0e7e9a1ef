document.querySelectorAll("table.sortable th button").forEach(function (button) {
  button.addEventListener("click", function () {
    var head = button.parentNode, column = head.cellIndex, body = head.closest("table").tBodies[0];
    var down = head.getAttribute("aria-sort") === "ascending", numbers = head.classList.contains("n");
    head.parentNode.querySelectorAll("th").forEach(function (th) { th.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    function text(row) { return row.cells[column].textContent.trim(); }
    function order(a, b) {
      if (!numbers) return text(a).localeCompare(text(b), undefined, {numeric: true});
      var x = parseFloat(text(a)), y = parseFloat(text(b));
      return (isNaN(x) ? -Infinity : x) - (isNaN(y) ? -Infinity : y) || 0;
    }
    Array.from(body.rows).sort(function (a, b) { return down ? order(b, a) : order(a, b); })
      .forEach(function (row) { body.appendChild(row); });
  });
});
